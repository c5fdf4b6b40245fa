"""Closes and opens gates on a Pulsar broker, by a dispatch rate of the subscription and a barrier in front of the topic's messages.

The rate is one message in 68 years. It is a policy of the topic, and a broker of version 4.0.7 or later reads the policy
before it serves the topic. After each load of the topic the rate still lets one entry pass; on a busy broker rarely
two. These entries belong to the barrier (module `barrier`). They remain the first unread entries, because no client
acknowledges them. A gate holds for subscriptions of type Failover and Exclusive. It does not hold for Key_Shared, whose
dispatcher may skip the barrier.

A broker (seen with 4.2.4) lets one more entry pass at each change of a policy of the topic or of its namespace, because the
change renews the rate's tokens. A consumer that stays connected would be sent the entire barrier after some changes, and then
messages. A gate whose barrier is nearly used up is SPENT. Closing the gate again reloads the topic, and the next consumer
begins with the first entry of the barrier.

While consumers are connected to a closed gate, the broker checks the rate once a second. The check that finds the rate removed
starts a read at the position where the last read ended. It may come within the second for which a Failover subscription waits after a
consumer has connected, before the broker moves the cursor back for this consumer (seen with 4.2.4). What was sent to the
previous consumer then comes behind later messages, or not at all until the next message is appended. A disconnection of the consumers
does not prevent this: a consumer that has connected again, and was sent messages before the check, may disconnect once more. The
topic of an opened gate is therefore reloaded, which ends the checks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from controller.dataplane.pulsar import topic_requests
from controller.dataplane.pulsar.admin import AdminCalls, Ask, Deadline
from controller.dataplane.pulsar.barrier import ENTRIES, MOST_ENTRIES, Barrier, append_barrier, barrier_of
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.cursors import Cursors, is_closed_and_empty
from controller.dataplane.pulsar.http_errors import late
from controller.dataplane.pulsar.names import cursor_name, subscription_path, topic_path
from controller.dataplane.pulsar.stored_entries import NOWHERE, place_told, places_forwards
from controller.domain.errors import DataGone, SegmentNotFound, Unsupported
from controller.domain.gate_states import FenceState, GateState

if TYPE_CHECKING:
    from controller.dataplane.pulsar.binary import Connections

_RATE = {
    "dispatchThrottlingRateInMsg": 1,
    "dispatchThrottlingRateInByte": -1,
    "ratePeriodInSecond": 2**31 - 1,
    "relativeToPublishRate": False,
}
_NO_POLICIES = frozenset({405})
_ONGOING = frozenset({409})
_POLL_SECONDS = 0.02
SPARE_ENTRIES = 2
"""Number of entries of the barrier that may pass before the gate is SPENT: one after a load, or rarely two. The others remain until the
gate is closed again.
"""
Place = tuple[int, int]


class Gates:
    """Closes and opens gates. Safe to share between threads, but the caller makes the calls for one topic one at a time.

    Needs `close`. Connects to the brokers' binary port at the first use.
    """

    def __init__(self, access: PulsarAccess, admin: AdminCalls, cursors: Cursors) -> None:
        self._access, self._admin, self._cursors = access, admin, cursors
        self._lock = threading.Lock()
        self._opened: tuple[Connections, Connections] | None = None

    def close_gate(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """Close the gate of the subscription on the topic: set the dispatch rate, append the barrier unless the topic
        begins with one, and put the subscription's cursor before the barrier. A missing subscription is created. If
        consumers of the subscription are connected, the topic is reloaded. A terminated topic gets no barrier. Other
        subscriptions whose gates are not closed skip the barrier. A repeated call completes the work of an earlier
        call that failed.

        Raises DataGone if the topic begins with a message of an application; nothing is changed then, unless the
        message arrived during the call. Raises SegmentNotFound; Unsupported if the brokers have no topic policies, or
        if a barrier must be appended and the client library or the binary address is missing; DataPlaneTimeout if the
        broker does not apply the changes before the deadline; and the other errors of `AdminCalls.ask`.
        """
        internal = self._cursors.internal(backing_topic, deadline)
        self._demand_barrier_first(backing_topic, internal, deadline)
        # The rate is set first, so that it applies to every consumer that connects later. Consumers that are already
        # connected reconnect when the topic is reloaded below.
        self._set_rate(backing_topic, subscription, deadline)
        is_empty = is_closed_and_empty(internal)
        self._admin.ask(
            topic_requests.create_cursor(backing_topic, subscription, is_closed_and_empty=is_empty), deadline
        )
        barrier = self._ensure_barrier(backing_topic, deadline)
        if barrier is not None:
            self._move_before(backing_topic, subscription, barrier, deadline)
            self._skip_for_others(backing_topic, subscription, barrier, deadline)
        if self._is_attached(backing_topic, subscription, deadline):
            # If a consumer connected before the rate was set, its dispatcher may wait in a read that the rate does not limit.
            self._admin.ask(topic_requests.reload(backing_topic), deadline)

    def open_gate(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """Open the gate of the subscription on the topic: acknowledge the barrier for the subscription, then remove
        the subscription's dispatch rate, then reload the topic, which disconnects all its clients. An open gate is
        treated in the same way, because an earlier caller may have ended before the reload.

        For a missing subscription only the rate is removed. For a missing topic nothing is done. Raises
        DataPlaneTimeout if the broker does not apply the changes before the deadline, and the other errors of
        `AdminCalls.ask`. After an error, a repeated call completes the work.
        """
        try:
            internal = self._cursors.internal(backing_topic, deadline)
        except SegmentNotFound:
            return
        has_cursor = cursor_name(subscription) in internal["cursors"]
        if has_cursor:
            barrier = barrier_of(self._admin, backing_topic, internal, deadline)
            if barrier is not None:
                self._skip(backing_topic, subscription, barrier.last, deadline)
        path = _rate_path(backing_topic, subscription)
        act = f"remove the dispatch rate of {subscription!r} on {backing_topic}"
        self._admin.ask(Ask("DELETE", path, act, accept=topic_requests.GONE | _NO_POLICIES), deadline)
        if has_cursor:
            # The topic is reloaded without connected consumers, too: a check may be due from a consumer that has just left. If the topic
            # were reloaded before the broker applies the removal, the topic would begin with the rate, and with its checks.
            with suppress(SegmentNotFound):
                _wait(lambda: not self._has_rate(backing_topic, subscription, deadline), act, deadline)
            self._admin.ask(topic_requests.reload(backing_topic), deadline)

    def state(self, backing_topic: str, subscription: str, deadline: Deadline) -> GateState | None:
        """Return the state of the gate of the subscription on the topic. None if the topic or the subscription does
        not exist. Changes nothing.

        OPEN: the broker does not apply the dispatch rate of a gate to the subscription. Otherwise BREACHED if the
        topic does not begin with a barrier, or the subscription has acknowledged a part of the barrier; SPENT if a
        consumer is connected and more than `SPARE_ENTRIES` entries of the barrier were sent since the broker loaded
        the topic; and CLOSED in all other cases. The gate of an empty terminated topic is CLOSED without a barrier,
        because no message can follow. Raises DataPlaneTimeout at the deadline, and the other errors of
        `AdminCalls.ask`.
        """
        try:
            internal = self._cursors.internal(backing_topic, deadline)
            cursor = internal["cursors"].get(cursor_name(subscription))
            if cursor is None:
                return None
            if not self._has_rate(backing_topic, subscription, deadline):
                return GateState.OPEN
        except SegmentNotFound:
            return None
        barrier = barrier_of(self._admin, backing_topic, internal, deadline)
        if barrier is None:
            return GateState.CLOSED if is_closed_and_empty(internal) else GateState.BREACHED
        if place_told(cursor["markDeletePosition"]) >= barrier.first:
            return GateState.BREACHED
        is_spent = _passed_entries(internal, cursor, barrier) > SPARE_ENTRIES
        # A consumer that connects begins with the first entry again.
        is_spent = is_spent and self._is_attached(backing_topic, subscription, deadline)
        return GateState.SPENT if is_spent else GateState.CLOSED

    def skip_barrier(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """Acknowledge the barrier for the subscription, if the topic begins with a barrier and the subscription's
        gate is not closed. Otherwise, or if the subscription is missing or is already behind the barrier, nothing is
        changed. Raises SegmentNotFound; DataPlaneTimeout if the cursor has not moved at the deadline; and the other
        errors of `AdminCalls.ask`.
        """
        internal = self._cursors.internal(backing_topic, deadline)
        acknowledged = _acknowledged_position(internal, subscription)
        if all(place <= acknowledged for place in islice(places_forwards(internal), MOST_ENTRIES)):
            return  # most cursors, without a read of entries
        barrier = barrier_of(self._admin, backing_topic, internal, deadline)
        if barrier is not None and not self._has_rate(backing_topic, subscription, deadline):
            self._skip(backing_topic, subscription, barrier.last, deadline)

    def probe_fence(self, backing_topic: str, deadline: Deadline) -> FenceState:
        """Return whether clients can learn that a topic has ended, and make the broker reload a topic that stays
        fenced. TERMINATED: clients can learn it. FENCED: they could not, and the topic was reloaded. OPEN: the topic
        is not terminated, or accepts a producer. MISSING: there is no such topic. Raises Unsupported if the client
        library or the binary address is missing, and the errors of `fence_probe.probe_fence`.
        """
        _, probing = self._open()
        from controller.dataplane.pulsar.fence_probe import probe_fence

        return probe_fence(probing, self._cursors, backing_topic, deadline)

    def close(self) -> None:
        """Close the connections to the brokers."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            for connection in opened:
                connection.close()

    def _open(self) -> tuple[Connections, Connections]:
        """Return the connections that append barriers, and those that probe fences. Create both at the first call.

        Raises Unsupported if the Pulsar client library is not installed, or there is no binary address. `open_gate`, `state` and
        `skip_barrier` do not need the library.
        """
        with self._lock:
            if self._opened is None:
                self._opened = _create_connections(self._access, self._admin)
            return self._opened

    def _set_rate(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """Set the subscription's dispatch rate to that of a closed gate, and wait until the broker that serves the
        topic applies the rate. Raises Unsupported if the brokers have no topic policies; SegmentNotFound;
        DataPlaneTimeout if the rate is not applied at the deadline; and the other errors of `AdminCalls.ask`.
        """
        act = f"set the dispatch rate of {subscription!r} on {backing_topic}"
        ask = Ask("POST", _rate_path(backing_topic, subscription), act, body=_RATE, accept=_NO_POLICIES)
        if self._admin.ask(ask, deadline).status in _NO_POLICIES:
            raise no_policies(act)
        _wait(lambda: self._has_rate(backing_topic, subscription, deadline), act, deadline)

    def _has_rate(self, backing_topic: str, subscription: str, deadline: Deadline) -> bool:
        """Return True if the broker applies the rate of a closed gate to the subscription; False also for brokers without topic policies.
        Raises SegmentNotFound.
        """
        answer = self._admin.ask(_rate_ask(backing_topic, subscription), deadline)
        return answer.status not in _NO_POLICIES and _is_gate_rate(answer.document)

    def _ensure_barrier(self, backing_topic: str, deadline: Deadline) -> Barrier | None:
        """Return the barrier with which the topic begins. If the barrier is missing or incomplete, the topic is not
        terminated, and no message follows, a whole barrier is appended first. An incomplete barrier is returned as it
        is if the topic is terminated or a message follows. None if the topic is empty and terminated.

        Raises DataGone if the topic begins with a message of an application; the errors of `append_barrier`;
        Unsupported if a barrier must be appended and the client library or the binary address is missing; and the
        errors of `AdminCalls.ask`.
        """
        internal = self._cursors.internal(backing_topic, deadline)
        barrier = self._demand_barrier_first(backing_topic, internal, deadline)
        if internal.get("state") == "Terminated" or (barrier is not None and barrier.entries >= ENTRIES):
            return barrier
        if barrier is not None and barrier.entries < int(internal["numberOfEntries"]):
            return barrier  # a message follows a part of the barrier, so the rest can no longer be appended
        append_barrier(self._open()[0], backing_topic, deadline)
        internal = self._cursors.internal(backing_topic, deadline)
        return self._demand_barrier_first(backing_topic, internal, deadline)

    def _demand_barrier_first(
        self, backing_topic: str, internal: Mapping[str, Any], deadline: Deadline
    ) -> Barrier | None:
        """Return the barrier with which the topic begins; None if no entry is stored. `internal` contains the topic's
        internal statistics. Raises DataGone if the first stored entry does not belong to a barrier, and the errors of
        `AdminCalls.ask`.
        """
        barrier = barrier_of(self._admin, backing_topic, internal, deadline)
        if barrier is None and next(places_forwards(internal), None) is not None:
            raise DataGone(
                f"{backing_topic} begins with a message of an application, so no gate can be closed in front of the messages: the "
                "barrier was deleted after its retention, or messages were appended first; choose a later position, or read the "
                "segment to its end"
            )
        return barrier

    def _move_before(
        self, backing_topic: str, subscription: str, barrier: Barrier, deadline: Deadline
    ) -> None:
        """If the subscription has acknowledged the first entry of the barrier, move its cursor back before the
        barrier, which disconnects its consumers. Otherwise, or if there is no such subscription, change nothing.
        Raises the errors of `Cursors.move_before`.
        """
        internal = self._cursors.internal(backing_topic, deadline)
        if _acknowledged_position(internal, subscription) >= barrier.first:
            self._cursors.move_before(backing_topic, subscription, barrier.first, deadline)

    def _skip_for_others(
        self, backing_topic: str, subscription: str, barrier: Barrier, deadline: Deadline
    ) -> None:
        """Acknowledge the barrier for each durable subscription of the topic except `subscription`, unless the other
        subscription's gate is closed or its cursor is already behind the barrier. Wait until the cursors have moved.
        Raises DataPlaneTimeout if a cursor has not moved at the deadline, and the other errors of `AdminCalls.ask`.
        """
        internal = self._cursors.internal(backing_topic, deadline)
        listing = topic_requests.stats(backing_topic, f"list subscriptions of {backing_topic}")
        names = topic_requests.subscriptions(listing, self._admin.ask(listing, deadline)) or {}
        others = [
            name
            for name in sorted(names)
            if name != subscription and _acknowledged_position(internal, name) < barrier.last
        ]
        rates = self._admin.demand_all([_rate_ask(backing_topic, name) for name in others], deadline)
        for name, rate in zip(others, rates, strict=True):
            if not _is_gate_rate(rate.document):
                self._skip(backing_topic, name, barrier.last, deadline)

    def _skip(self, backing_topic: str, subscription: str, last: Place, deadline: Deadline) -> None:
        """Acknowledge for the subscription all entries up to `last`, the place of the barrier's last entry, and wait
        until the cursor has moved. A cursor that is already behind `last` does not move. A missing subscription is
        not an error. Raises SegmentNotFound; DataPlaneTimeout if the cursor has not moved at the deadline; and the
        other errors of `AdminCalls.ask`.
        """
        act = f"skip the barrier of {backing_topic} for {subscription!r}"
        path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}/expireMessages"
        body = {"ledgerId": last[0], "entryId": last[1], "partitionIndex": -1}

        def is_skipped() -> bool:
            """Return True if the cursor has moved or is missing; otherwise request the move and return False."""
            internal = self._cursors.internal(backing_topic, deadline)
            if cursor_name(subscription) not in internal["cursors"]:
                return True
            if _acknowledged_position(internal, subscription) >= last:
                return True
            self._admin.ask(
                Ask("POST", path, act, body=body, accept=topic_requests.GONE | _ONGOING), deadline
            )
            return False

        _wait(is_skipped, act, deadline)

    def _is_attached(self, backing_topic: str, subscription: str, deadline: Deadline) -> bool:
        """Return True if the subscription, which is durable, has connected consumers. False also for a missing topic or subscription."""
        ask = topic_requests.stats(backing_topic, f"list consumers of {subscription!r} on {backing_topic}")
        statistics = topic_requests.subscriptions(ask, self._admin.ask(ask, deadline)) or {}
        return bool(statistics.get(subscription, {}).get("consumers"))


def _create_connections(access: PulsarAccess, admin: AdminCalls) -> tuple[Connections, Connections]:
    """Return new connections for barriers, and others for probing fences. Raises Unsupported if the Pulsar client library is not
    installed, or `access` has no binary address.
    """
    try:
        from controller.dataplane.pulsar.binary import Connections
        from controller.dataplane.pulsar.fence_probe import PROBE_SECONDS
    except ImportError as error:
        raise Unsupported(
            f"the Pulsar client library is missing ({error}); run pip install pulsar-client"
        ) from error
    probing = Connections(access, call_timeout_seconds=PROBE_SECONDS)
    return Connections(access, call_timeout_seconds=admin.call_timeout_seconds), probing


def no_policies(act: str) -> Unsupported:
    """Return the error for brokers whose topic policies are switched off. `act` names the action that failed."""
    return Unsupported(
        f"{act}: gates need topic policies, which are switched off at the brokers; set topicLevelPoliciesEnabled=true and "
        "systemTopicEnabled=true in the brokers' configuration"
    )


def _rate_path(backing_topic: str, subscription: str) -> str:
    """Return the path of the subscription's dispatch rate on the topic, for reading, setting and removing the rate."""
    return f"{topic_path(backing_topic)}/{subscription_path(subscription)}/dispatchRate"


def _rate_ask(backing_topic: str, subscription: str) -> Ask:
    """Return the request for the dispatch rate that the broker applies to the subscription. Status 405 of a broker without topic policies
    is not an error.
    """
    act = f"read the dispatch rate of {subscription!r} on {backing_topic}"
    return Ask("GET", f"{_rate_path(backing_topic, subscription)}?applied=true", act, accept=_NO_POLICIES)


def _is_gate_rate(rate: object) -> bool:
    """Return True if a dispatch rate, as the broker reports it, is the rate of a closed gate."""
    return isinstance(rate, Mapping) and {name: rate.get(name) for name in _RATE} == _RATE


def _acknowledged_position(internal: Mapping[str, Any], subscription: str) -> Place:
    """Return the position up to which the subscription has acknowledged every entry. NOWHERE if there is no such cursor."""
    cursor = internal["cursors"].get(cursor_name(subscription))
    return NOWHERE if cursor is None else place_told(cursor["markDeletePosition"])


def _passed_entries(internal: Mapping[str, Any], cursor: Mapping[str, Any], barrier: Barrier) -> int:
    """Return the number of entries of the barrier that the broker has read for the subscription, up to
    `barrier.entries`. `internal` are the topic's internal statistics, and `cursor` the subscription's part of them.
    """
    reads_on_at = place_told(cursor["readPosition"])
    return sum(place < reads_on_at for place in islice(places_forwards(internal), barrier.entries))


def _wait(is_done: Callable[[], bool], act: str, deadline: Deadline) -> None:
    """Call `is_done` at short intervals until it returns True. Raises DataPlaneTimeout, whose message begins with
    `act`, at the deadline, and the errors of `is_done`.
    """
    pause = threading.Event()
    while not is_done():
        if not deadline.left_seconds:
            raise late(act, deadline.seconds)
        pause.wait(_POLL_SECONDS)
