"""Gate keeper: opens the gates of subscriptions that standard consumers read, once the segments before the gates are drained.

The gate keeper runs in a thread of a worker, for the shards that the worker holds. Each round reads the shut gates, asks the data plane
which ancestor segments are drained, and opens each gate whose ancestors are all drained (`domain.drain_barrier`). A segment counts as drained
only after the data plane has persisted its cursor. Every step is idempotent, so several keepers may repeat it. A closed gate stays closed
without a keeper.

The keeper calls the checkpoints `drain`, `ready` and `open` before and after the commit of each step. Tests end the process there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from controller import metrics, telemetry
from controller.clock import Clock
from controller.dataplane.base import DataPlane
from controller.dataplane.gates import GatedDataPlane
from controller.domain import drain_barrier
from controller.domain.drain_barrier import GatePlan
from controller.domain.errors import (
    CleaveError,
    NotFound,
    StoreUnavailable,
    SubscriptionNotFound,
    TopicNotFound,
)
from controller.domain.gate_states import GateState
from controller.repeating import Repeating, Stoppable
from controller.store.journal import seeks
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from controller.store.topics import bucket_owners, drains, gates, readable_segments, topics
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.gates import Gate, GateRecord, ShutGates

log = telemetry.get_logger(__name__)

IDLE_SECONDS = 0.5
"""Interval between two rounds while no gate is shut."""
POLL_SECONDS = 0.1
SLOW_POLL_SECONDS = 0.5
SLOW_AFTER_SECONDS = 30.0
"""The keeper polls gates that have been shut for longer every `SLOW_POLL_SECONDS`, because consumers need long for their segments."""
AUDIT_SECONDS = 5.0
"""Interval at which the keeper compares a closed gate with the data plane."""
AUDIT_AFTER_OPENING_SECONDS = 1.0
"""Seconds after which the keeper compares the other gates of a topic when it has opened one: opening a gate wears down the barriers of the
same log's other gates.
"""
LONGEST_PAUSE_SECONDS = 5.0
PARALLEL_CALLS = 8
FAILING_SECONDS = 1.0
"""Seconds in which a round begins to try the subscriptions whose last try failed. Those come last, and each may take the longest time of
a call.
"""


@dataclass(slots=True)
class _Pace:
    """Times of the next poll and the next audit of a subscription's gates, by the monotonic clock, and the number of failures in a row."""

    next_at: float = 0.0
    audit_at: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """Gates of a subscription to open and segments to drain, the origin under which the plan holds, and the logs of these segments by id."""

    gates: GatePlan
    origin: int
    logs: Mapping[int, str]


class GateKeeper(Stoppable):
    """Opens the shut gates in the shards that `shards` returns, once their ancestors are drained. One thread calls `run` or `round`;
    several keepers may work on one subscription.
    """

    def __init__(
        self,
        store: Store,
        planes: Mapping[str, DataPlane],
        shards: Callable[[], Shards],
        clock: Clock,
        *,
        checkpoint: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """`planes` are the data planes by name; those without gates are ignored. `checkpoint` is called before and after the commits of
        `drain`, `ready` and `open`, with a name such as `drain:before`, so that tests can end the process there.
        """
        super().__init__()
        self._store, self._shards, self._clock, self._checkpoint = store, shards, clock, checkpoint
        self._planes = {name: plane for name, plane in planes.items() if isinstance(plane, GatedDataPlane)}
        self._paces: dict[SubscriptionKey, _Pace] = {}

    @property
    def is_needed(self) -> bool:
        """True if a data plane with gates is configured."""
        return bool(self._planes)

    def run(self) -> None:
        """Run rounds until `stop`, the first at once. A round follows after `POLL_SECONDS` while a gate is shut,
        otherwise after `IDLE_SECONDS`. If a round fails, log the error, pause, and run the next round. Raises
        nothing.
        """
        Repeating(
            lambda: POLL_SECONDS if self.round() else IDLE_SECONDS,
            self._stopping,
            log,
            "round of the gate keeper failed",
            retry_seconds=(POLL_SECONDS, 1.0),
        ).run()

    def round(self) -> int:
        """Open, drain and audit the gates of the subscriptions that are due, up to `PARALLEL_CALLS` topics at a time, and
        one subscription of a topic at a time; subscriptions whose last try failed come last, for `FAILING_SECONDS`.
        Return the number of subscriptions with shut gates, due or not. The number of shut gates is set as a metric. The
        result is 0 if no shard is held or no data plane with gates is configured.

        Topics and subscriptions that are not live do not count, nor do topics that are held or unverified. An error
        of one subscription is logged and stored with its gates, which stay shut and are tried again later. Raises
        StoreUnavailable if the shut gates cannot be read.
        """
        shards = self._shards()
        if not (shards.held and self._planes):
            metrics.GATES_SHUT.set(0)
            return 0
        shut = self._store.in_single_statement(gates.shut, shards, self._planes)
        metrics.GATES_SHUT.set(sum(len(group.logs) for group in shut))
        self._paces = {group.key: self._paces.get(group.key) or _Pace() for group in shut}
        now = self._clock.monotonic_seconds()
        due = [group for group in shut if self._paces[group.key].next_at <= now]
        failing = [group for group in due if self._paces[group.key].failures]
        failing.sort(key=lambda group: self._paces[group.key].next_at)
        if due:
            with ThreadPoolExecutor(min(PARALLEL_CALLS, len(due)), thread_name_prefix="gates") as calls:
                list(calls.map(self._serve_all, _by_topic(group for group in due if group not in failing)))
                give_up_at = self._clock.monotonic_seconds() + FAILING_SECONDS
                list(calls.map(partial(self._serve_all, give_up_at=give_up_at), _by_topic(failing)))
        return len(shut)

    def _serve_all(self, groups: Sequence[ShutGates], give_up_at: float = math.inf) -> None:
        """Call `_serve` for the subscriptions of one topic, one after the other, because a log takes one call at a time."""
        for group in groups:
            self._serve(group, give_up_at)

    def _serve(self, shut: ShutGates, give_up_at: float) -> None:
        """Open, drain and audit the gates of one subscription, and set the time at which the subscription is due
        again. Raises nothing. An error is reported (`_report`), and the gates are tried again after a pause, which
        doubles with each failure in a row up to `LONGEST_PAUSE_SECONDS`. If the subscription or its topic was deleted
        meanwhile, nothing is reported. From `give_up_at` (monotonic seconds) on, the subscription is left to the next
        round.
        """
        pace = self._paces[shut.key]
        if self._clock.monotonic_seconds() >= give_up_at:
            return
        try:
            self._open_what_may_open(shut)
            self._audit(shut, pace)
            pace.failures = 0
            pause = SLOW_POLL_SECONDS if shut.shut_seconds > SLOW_AFTER_SECONDS else POLL_SECONDS
        except (SubscriptionNotFound, TopicNotFound):  # the subscription or its topic was deleted meanwhile
            pause = POLL_SECONDS
        except Exception as error:  # noqa: BLE001 - it would keep the gates of other subscriptions shut
            self._report(shut, error)
            pace.failures += 1
            pause = min(POLL_SECONDS * float(2 ** min(pace.failures, 10)), LONGEST_PAUSE_SECONDS)
        pace.next_at = self._clock.monotonic_seconds() + pause

    def _report(self, shut: ShutGates, error: Exception, *segment_ids: int) -> None:
        """Log the error, and store it in the database with the gates of the segments `segment_ids`; without ids, with
        all gates of `shut`. StoreUnavailable is neither logged nor stored, because the next round reports it. If
        another error cannot be stored, it is only logged: a raised error would end the round of all subscriptions.
        """
        segments = list(segment_ids or shut.logs)
        labels = {"topic": shut.topic, "subscription": shut.key.name, "segments": segments}
        if not isinstance(error, CleaveError):
            log.error("gates stay shut", **labels, exc_info=error)
        elif isinstance(error, StoreUnavailable):
            return  # the next round reports it
        else:
            log.warning("gates stay shut", **labels, error=str(error))
        try:
            self._store.in_transaction(
                gates.note_failure, shut.key, segments, str(error) or type(error).__name__
            )
        except StoreUnavailable:
            return
        except CleaveError as unstored:
            log.warning("error of a gate not stored", **labels, error=str(unstored))

    def _open_what_may_open(self, shut: ShutGates) -> None:
        """Open the gates whose ancestors are drained, and mark further segments as drained, in turns, until neither
        makes progress, all gates of `shut` are open, or the keeper stops. The turns are needed because an empty
        segment is drained as soon as its gate is open. Does nothing while a seek is in progress. Raises
        SubscriptionNotFound, StoreUnavailable, and the errors of the data plane; gates that were opened before the
        error stay open.
        """
        logs = dict(shut.logs)
        while logs and not self._stopping.is_set():
            plan = self._plan(shut, logs)
            opened = self._open(shut, plan)
            for segment_id in opened:
                del logs[segment_id]
            if not (self._drain(shut, plan) or opened):
                return

    def _plan(self, shut: ShutGates, logs: Mapping[int, str]) -> _Plan:
        """Return which of the gates on `logs` (backing topics by segment id) may be opened, and which segments have
        to be drained before the others may be opened. If the subscription does not wait for ancestors, all gates may
        be opened. While a seek is in progress, the plan is empty. The plan holds for the origin that it names.
        Nothing is changed. Raises SubscriptionNotFound if the subscription does not exist or is being deleted.
        """
        with self._store.transaction() as tx:
            _, origin = bucket_owners.lock(tx, shut.key)
            if seeks.under_way(tx, shut.key) is not None:
                return _Plan(GatePlan((), ()), origin, {})
            left = readable_segments.to_read(tx, shut.key.topic_id, shut.key.name)
        if not shut.waits_for_ancestors:
            return _Plan(GatePlan(tuple(logs), ()), origin, logs)
        plan = drain_barrier.plan_gates(left.layout, left.drained, logs)
        return _Plan(plan, origin, {**left.backing_topics, **logs})

    def _still_holds(self, tx: Connection, shut: ShutGates, plan: _Plan) -> bool:
        """Return True if no seek has begun since the plan was made. The subscription stays locked until the transaction ends. Raises
        SubscriptionNotFound.
        """
        _, origin = bucket_owners.lock(tx, shut.key)
        return origin == plan.origin and seeks.under_way(tx, shut.key) is None

    def _drain(self, shut: ShutGates, plan: _Plan) -> bool:
        """Mark those segments of the plan as drained that the subscription has read to their ends, after the data
        plane has persisted the subscription's cursors there. Return True if segments were marked. Return False if no
        segment is read to its end, or if a seek has begun since the plan was made; nothing is then marked.

        Raises TopicNotFound, SubscriptionNotFound, StoreUnavailable, and the errors of the data plane.
        """
        plane, name = self._planes[shut.data_plane], shut.key.name
        persisted = [i for i in plan.gates.to_drain if _is_persisted(plane, plan.logs[i], name)]
        if not persisted:
            return False
        self._checkpoint("drain:before")
        with self._store.transaction() as tx:
            # A seek locks the topic before the subscription, too.
            topics.get_topic(tx, shut.key.topic_id, lock=True)
            is_marked = self._still_holds(tx, shut, plan)
            if is_marked:
                drains.mark_drained(tx, shut.key.topic_id, name, persisted)
        self._checkpoint("drain:after")
        return is_marked

    def _open(self, shut: ShutGates, plan: _Plan) -> list[int]:
        """Open the gates that the plan allows, and return the ids of the segments whose gates were opened. The gates
        are first recorded as ready to open. If a seek has begun since the plan was made, no gate is opened, and the
        list is empty. A segment is also absent if its gate was open already, or if no time was left for the call; a
        later round then tries again.

        Raises SubscriptionNotFound, StoreUnavailable, and the errors of the data plane. After an error, other gates
        of the plan may have been opened.
        """
        plane = self._planes[shut.data_plane]
        if not plan.gates.may_open:
            return []
        self._checkpoint("ready:before")
        seconds = 2 * plane.call_timeout_seconds
        until = self._clock.monotonic_seconds() + seconds
        with self._store.transaction() as tx:
            ready: list[int] = []
            if self._still_holds(tx, shut, plan):
                ready = gates.make_ready(tx, shut.key, plan.gates.may_open, opening_seconds=seconds)
        self._checkpoint("ready:after")
        if not ready:
            return []
        opening = partial(self._open_one, shut, plan, until)
        with ThreadPoolExecutor(min(PARALLEL_CALLS, len(ready)), thread_name_prefix="gate") as calls:
            return [i for i, is_opened in zip(ready, calls.map(opening, ready), strict=True) if is_opened]

    def _open_one(self, shut: ShutGates, plan: _Plan, until: float, segment_id: int) -> bool:
        """Have the data plane open one gate, record the gate as open, and return True. If a seek has closed the gate
        again, the record is not changed, and the result is also True. The other gates of the topic are then audited
        soon.

        Return False, without a call, if the call could last longer than `until` (monotonic seconds), from when on a
        seek may close the gate again. Raises the errors of the data plane, and StoreUnavailable.
        """
        plane = self._planes[shut.data_plane]
        if until - self._clock.monotonic_seconds() < plane.call_timeout_seconds:
            return False
        plane.open_gate(plan.logs[segment_id], shut.key.name)
        self._checkpoint("open:before")
        took_seconds = self._store.in_transaction(gates.note_opened, shut.key, segment_id)
        self._checkpoint("open:after")
        self._audit_soon(shut.key.topic_id)
        if took_seconds is not None:
            metrics.GATE_OPENING_SECONDS.observe(took_seconds)
            log.info("gate opened", topic=shut.topic, subscription=shut.key.name, segment_id=segment_id)
        return True

    def _audit_soon(self, topic_id: int) -> None:
        """Bring the next audits of the topic's gates forward, to `AUDIT_AFTER_OPENING_SECONDS` from now at the latest."""
        audit_at = self._clock.monotonic_seconds() + AUDIT_AFTER_OPENING_SECONDS
        for key, pace in self._paces.items():
            if key.topic_id == topic_id:
                pace.audit_at = min(pace.audit_at, audit_at)

    def _audit(self, shut: ShutGates, pace: _Pace) -> None:
        """Compare the gates of the subscription that are recorded as closed with the data plane. A gate that is open
        or spent there is closed again; whether a consumer has acknowledged the barrier is recorded. Gates that are
        recorded as open or are being opened are skipped.

        Does nothing if the subscription does not wait for ancestors, or before the time of the next audit:
        `AUDIT_SECONDS` after the last audit, or earlier after a gate of the topic was opened. Ends early when the keeper stops. A
        CleaveError of one gate is reported and does not stop the others. StoreUnavailable and unexpected errors are raised.
        """
        now = self._clock.monotonic_seconds()
        if now < pace.audit_at or not shut.waits_for_ancestors:
            return
        pace.audit_at = now + AUDIT_SECONDS
        recorded = self._store.in_transaction(gates.gates_of, shut.key)
        for gate in recorded:
            if self._stopping.is_set():
                return
            if gate.state is GateRecord.CLOSED and not gate.is_opening:
                try:
                    self._audit_one(shut, gate)
                except StoreUnavailable:
                    raise
                except CleaveError as error:  # the keeper goes on with the other gates
                    self._report(shut, error, gate.segment_id)

    def _audit_one(self, shut: ShutGates, gate: Gate) -> None:
        """Compare one gate that is recorded as closed with the data plane. If the gate is open or spent there, log a
        warning and close the gate again, unless its row has changed in the meantime or this keeper has lost the shard.
        Record whether a consumer has acknowledged the barrier (a breach), and log a warning when a breach is recorded. A
        missing log or subscription counts as no breach. Raises StoreUnavailable and the errors of the data plane.
        """
        plane, name = self._planes[shut.data_plane], shut.key.name
        labels = {"topic": shut.topic, "subscription": name, "segment_id": gate.segment_id}
        state = plane.gate_state(gate.backing_topic, name)
        if state in (GateState.OPEN, GateState.SPENT):
            if not self._is_still_closed(shut, gate):
                return
            log.warning("gate closed again", found=state.value, **labels)
            plane.close_gate(gate.backing_topic, name)
        is_breached = state is GateState.BREACHED
        is_changed = self._store.in_transaction(
            gates.note_breach, shut.key, gate.segment_id, is_breached=is_breached
        )
        if is_changed and is_breached:
            log.warning("gate breached", **labels)

    def _is_still_closed(self, shut: ShutGates, gate: Gate) -> bool:
        """Return True if this keeper still has the shard of the topic, and the row of the gate is the same as `gate`. Otherwise another
        keeper may have opened the gate. Raises StoreUnavailable.
        """
        if not self._shards().owns(shut.key.topic_id):
            return False
        return gate in self._store.in_transaction(gates.gates_of, shut.key)


def _by_topic(groups: Iterable[ShutGates]) -> list[list[ShutGates]]:
    """Return the groups of each topic, in the order in which the topics and groups come first."""
    topic_groups: dict[int, list[ShutGates]] = {}
    for group in groups:
        topic_groups.setdefault(group.key.topic_id, []).append(group)
    return [*topic_groups.values()]


def _is_persisted(plane: GatedDataPlane, backing_topic: str, subscription: str) -> bool:
    """Make the data plane persist the subscription's cursor at the end of the log, and return True, if the log is
    terminated and the subscription has acknowledged all its messages. Return False otherwise, also if the log or the
    subscription is missing. Raises the other errors of the data plane.
    """
    try:
        return plane.persist_cursor_at_end(backing_topic, subscription)
    except NotFound:  # the reconciler reports a missing log, and restores it
        return False
