"""Gates on a Pulsar broker: a dispatch rate of the subscription lets one entry pass a load of the topic, and that entry is of the barrier.

Two facts keep a gate closed. The rate, one message in 68 years, is a policy of the topic, which a broker from 4.0 on reads before it serves
the topic. After each load the rate lets one entry pass, and on a busy broker seldom two: entries of the barrier (see `barrier`), which
stay the first unread entries because no client acknowledges them. This holds for Failover and Exclusive. A Key_Shared dispatcher may pass
over the barrier.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from controller.dataplane.pulsar import topic_requests
from controller.dataplane.pulsar.access import PulsarAccess
from controller.dataplane.pulsar.admin import AdminCalls, Ask, Deadline
from controller.dataplane.pulsar.barrier import ENTRIES, Barrier, append_barrier, barrier_of
from controller.dataplane.pulsar.cursors import Cursors, is_closed_and_empty
from controller.dataplane.pulsar.errors import late
from controller.dataplane.pulsar.names import cursor_name, subscription_path, topic_path
from controller.dataplane.pulsar.stored import NOWHERE, place_told, places_forwards
from controller.domain.errors import DataGone, SegmentNotFound, Unsupported
from controller.domain.gates import FenceState, GateState

if TYPE_CHECKING:
    from controller.dataplane.pulsar.binary import Connections
    from controller.dataplane.pulsar.fence_probe import FenceProbe

_RATE = {
    "dispatchThrottlingRateInMsg": 1,
    "dispatchThrottlingRateInByte": -1,
    "ratePeriodInSecond": 2**31 - 1,
    "relativeToPublishRate": False,
}
_NO_POLICIES = frozenset({405})
_ONGOING = frozenset({409})
_LOOK_SECONDS = 0.02
Place = tuple[int, int]


class Gates:
    """Closes and opens gates. Safe to share between threads; calls for one topic come one at a time."""

    def __init__(self, access: PulsarAccess, admin: AdminCalls, cursors: Cursors) -> None:
        self._access, self._admin, self._cursors = access, admin, cursors
        self._lock = threading.Lock()
        self._opened: tuple[Connections, FenceProbe] | None = None

    def close_gate(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """See `GatedDataPlane`."""
        self._demand_front(backing_topic, self._cursors.internal(backing_topic, deadline), deadline)
        # The rate comes first: a consumer that attaches from here on has the rate, and the topic is loaded again for the others.
        self._set_rate(backing_topic, subscription, deadline)
        self._admin.ask(topic_requests.create_cursor(backing_topic, subscription), deadline)
        barrier = self._barrier_made(backing_topic, deadline)
        if barrier is not None:
            self._move_before(backing_topic, subscription, barrier, deadline)
            self._skip_for_others(backing_topic, subscription, barrier, deadline)
        if self._is_attached(backing_topic, subscription, deadline):
            # The dispatcher of a consumer from before the rate has a read without a limit waiting.
            act = f"have {backing_topic} loaded again"
            self._admin.ask(Ask("PUT", f"{topic_path(backing_topic)}/unload", act), deadline)

    def open_gate(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """See `GatedDataPlane`."""
        try:
            internal = self._cursors.internal(backing_topic, deadline)
        except SegmentNotFound:
            return
        if cursor_name(subscription) in internal["cursors"]:
            barrier = barrier_of(self._admin, backing_topic, internal, deadline)
            if barrier is not None:
                self._skip(backing_topic, subscription, barrier.last, deadline)
        path = _rate_path(backing_topic, subscription)
        act = f"remove the dispatch rate of {subscription!r} on {backing_topic}"
        self._admin.ask(Ask("DELETE", path, act, accept=topic_requests.GONE | _NO_POLICIES), deadline)

    def state(self, backing_topic: str, subscription: str, deadline: Deadline) -> GateState | None:
        """See `GatedDataPlane.gate_state`."""
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
        is_passed = place_told(cursor["markDeletePosition"]) >= barrier.first
        return GateState.BREACHED if is_passed else GateState.CLOSED

    def skip_barrier(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """Have a subscription without a closed gate skip the barrier, if the topic begins with one. Raises SegmentNotFound."""
        internal = self._cursors.internal(backing_topic, deadline)
        barrier = barrier_of(self._admin, backing_topic, internal, deadline)
        if barrier is not None and not self._has_rate(backing_topic, subscription, deadline):
            self._skip(backing_topic, subscription, barrier.last, deadline)

    def probe_fence(self, backing_topic: str, deadline: Deadline) -> FenceState:
        """See `GatedDataPlane`."""
        return self._open()[1].probe(backing_topic, deadline)

    def close(self) -> None:
        """Give back connections."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            for one in opened:
                one.close()

    def _open(self) -> tuple[Connections, FenceProbe]:
        """Connections to append barriers with, and the probe. Only a process that needs them needs the client library."""
        with self._lock:
            if self._opened is None:
                self._opened = _opened(self._access, self._admin, self._cursors)
            return self._opened

    def _set_rate(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """Returns when the broker that serves the topic applies the rate."""
        act = f"set the dispatch rate of {subscription!r} on {backing_topic}"
        ask = Ask("POST", _rate_path(backing_topic, subscription), act, body=_RATE, accept=_NO_POLICIES)
        if self._admin.ask(ask, deadline).status in _NO_POLICIES:
            raise no_policies(act)
        _wait(lambda: self._has_rate(backing_topic, subscription, deadline), act, deadline)

    def _has_rate(self, backing_topic: str, subscription: str, deadline: Deadline) -> bool:
        """Whether the broker applies the rate of a closed gate. Raises SegmentNotFound."""
        found = self._admin.ask(_rate_ask(backing_topic, subscription), deadline)
        return found.status not in _NO_POLICIES and _is_ours(found.document)

    def _barrier_made(self, backing_topic: str, deadline: Deadline) -> Barrier | None:
        """Return the barrier, and append one if the topic has no message yet. None if no message can follow."""
        internal = self._cursors.internal(backing_topic, deadline)
        barrier = self._demand_front(backing_topic, internal, deadline)
        if internal.get("state") == "Terminated" or (barrier is not None and barrier.entries >= ENTRIES):
            return barrier
        if barrier is not None and barrier.entries < int(internal["numberOfEntries"]):
            return barrier  # messages have followed upon a part of it
        append_barrier(self._open()[0], backing_topic, deadline)
        internal = self._cursors.internal(backing_topic, deadline)
        return self._demand_front(backing_topic, internal, deadline)

    def _demand_front(
        self, backing_topic: str, internal: Mapping[str, Any], deadline: Deadline
    ) -> Barrier | None:
        """Return the barrier, None in an empty topic. Raises DataGone if another message comes first."""
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
        """Move a cursor that has passed the barrier, or a part of it, back to the beginning."""
        internal = self._cursors.internal(backing_topic, deadline)
        if _mark_of(internal, subscription) >= barrier.first:
            self._cursors.move_before(backing_topic, subscription, barrier.first, deadline)

    def _skip_for_others(
        self, backing_topic: str, subscription: str, barrier: Barrier, deadline: Deadline
    ) -> None:
        """Have each other subscription skip the barrier, unless the gate of the subscription is closed."""
        internal = self._cursors.internal(backing_topic, deadline)
        listing = topic_requests.stats(backing_topic, f"list subscriptions of {backing_topic}")
        found = topic_requests.subscriptions(listing, self._admin.ask(listing, deadline)) or {}
        before = [
            name for name in sorted(found) if name != subscription and _mark_of(internal, name) < barrier.last
        ]
        rates = self._admin.demand_all([_rate_ask(backing_topic, name) for name in before], deadline)
        for name, rate in zip(before, rates, strict=True):
            if not _is_ours(rate.document):
                self._skip(backing_topic, name, barrier.last, deadline)

    def _skip(self, backing_topic: str, subscription: str, last: Place, deadline: Deadline) -> None:
        """Acknowledge all up to the last entry of a barrier, and return when that is done. A cursor behind it stays where it is."""
        act = f"skip the barrier of {backing_topic} for {subscription!r}"
        path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}/expireMessages"
        body = {"ledgerId": last[0], "entryId": last[1], "partitionIndex": -1}

        def is_skipped() -> bool:
            internal = self._cursors.internal(backing_topic, deadline)
            if cursor_name(subscription) not in internal["cursors"]:
                return True
            if _mark_of(internal, subscription) >= last:
                return True
            self._admin.ask(
                Ask("POST", path, act, body=body, accept=topic_requests.GONE | _ONGOING), deadline
            )
            return False

        _wait(is_skipped, act, deadline)

    def _is_attached(self, backing_topic: str, subscription: str, deadline: Deadline) -> bool:
        ask = topic_requests.stats(
            backing_topic, f"look for consumers of {subscription!r} on {backing_topic}"
        )
        found = topic_requests.subscriptions(ask, self._admin.ask(ask, deadline)) or {}
        return bool(found.get(subscription, {}).get("consumers"))


def _opened(access: PulsarAccess, admin: AdminCalls, cursors: Cursors) -> tuple[Connections, FenceProbe]:
    try:
        from controller.dataplane.pulsar.binary import Connections
        from controller.dataplane.pulsar.fence_probe import PROBE_SECONDS, FenceProbe
    except ImportError as error:
        raise Unsupported(
            f"the Pulsar client library is missing ({error}); run pip install pulsar-client"
        ) from error
    probing = Connections(access, call_timeout_seconds=PROBE_SECONDS)
    return Connections(access, call_timeout_seconds=admin.call_timeout_seconds), FenceProbe(probing, cursors)


def no_policies(act: str) -> Unsupported:
    """The error for brokers without topic policies."""
    return Unsupported(
        f"{act}: the brokers keep no policies of topics, which gates need: set topicLevelPoliciesEnabled=true and "
        "systemTopicEnabled=true in their configuration"
    )


def _rate_path(backing_topic: str, subscription: str) -> str:
    return f"{topic_path(backing_topic)}/{subscription_path(subscription)}/dispatchRate"


def _rate_ask(backing_topic: str, subscription: str) -> Ask:
    act = f"look at the dispatch rate of {subscription!r} on {backing_topic}"
    return Ask("GET", f"{_rate_path(backing_topic, subscription)}?applied=true", act, accept=_NO_POLICIES)


def _is_ours(rate: object) -> bool:
    return isinstance(rate, Mapping) and {name: rate.get(name) for name in _RATE} == _RATE


def _mark_of(internal: Mapping[str, Any], subscription: str) -> Place:
    """Position up to which the subscription has acknowledged everything. Before every entry if there is no such cursor."""
    cursor = internal["cursors"].get(cursor_name(subscription))
    return NOWHERE if cursor is None else place_told(cursor["markDeletePosition"])


def _wait(is_done: Callable[[], bool], act: str, deadline: Deadline) -> None:
    """Ask until it is done. Raises DataPlaneTimeout."""
    patience = threading.Event()
    while not is_done():
        if not deadline.left_seconds:
            raise late(act, deadline.seconds)
        patience.wait(_LOOK_SECONDS)
