"""Steps of an operation that concern gates: close and verify gates, move cursors behind them, remove them.

`log_steps` calls these steps for topics with subscriptions that standard consumers read. Every step is idempotent. Only the gate keeper
opens the gates of a live subscription.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress

from controller.clock import to_datetime
from controller.dataplane.base import DataPlane
from controller.dataplane.gates import GatedDataPlane
from controller.domain.errors import HeldUp, NotFound, SegmentNotFound, SubscriptionNotFound, Unsupported
from controller.domain.gate_states import FenceState, GateState
from controller.domain.operation import Operation
from controller.domain.segment_graph import SegmentGraph
from controller.services.operation_runner.call_all import CallAll
from controller.store.journal.seeks import CLOCKS_APART_MS, SeekLog
from controller.store.postgres.engine import Store
from controller.store.topics import gates, layouts
from controller.store.topics.bucket_owners import SubscriptionKey

PROBE_AGAIN_SECONDS = 0.25
"""A broker needs some 100 ms to load a topic again."""
EARLIEST_MS = 0


class GateSteps:
    """Calls one data plane about gates, under the operation claims that `call_all` renews."""

    def __init__(self, store: Store, plane: DataPlane, call_all: CallAll) -> None:
        self._store, self._any_plane, self._call_all = store, plane, call_all

    def close_children(self, operation: Operation, names: Sequence[str]) -> None:
        """Close the gate of each child for each subscription of standard consumers (`names`), and record the gates as closed. No effect
        without such subscriptions, and for operations whose children succeed no log. Raises Unsupported on a data plane without gates, and
        the errors of the calls.
        """
        if not (names and operation.kind.succeeds_logs):
            return
        plane = self._plane(operation.topic_name)
        pairs = [(name, child) for name in names for child in operation.children]
        self._call_all([partial(plane.close_gate, child.backing_topic, name) for name, child in pairs])
        with self._store.transaction() as tx:
            gates.note_closed(tx, operation, [(name, child.plan.segment_id) for name, child in pairs])

    def keep_closed(self, operation: Operation, names: Sequence[str]) -> None:
        """Verify the gates of the children at the data plane before the parents are terminated, and close the gates that are not closed
        there. Writes no rows. No effect without subscriptions of standard consumers (`names`), and for operations whose children succeed no
        log. Raises Unsupported on a data plane without gates, and the errors of the calls.
        """
        if not (names and operation.kind.succeeds_logs):
            return
        plane = self._plane(operation.topic_name)
        pairs = [(child.backing_topic, name) for name in names for child in operation.children]
        states = self._call_all([partial(plane.gate_state, log, name) for log, name in pairs])
        unclosed = [pair for pair, state in zip(pairs, states, strict=True) if state is not GateState.CLOSED]
        self._call_all([partial(plane.close_gate, log, name) for log, name in unclosed])

    def probe_fences(self, logs: Sequence[str]) -> None:
        """Probe whether consumers can connect to these terminated logs, and whether the logs are still
        terminated. The data plane reloads a log that refuses consumers; an open log is terminated again
        unless another log refuses consumers. Raises HeldUp if there was a log of either kind, so that the
        step probes again. No effect on a data plane without gates.

        A broker (seen with 4.2.4) forgets a termination that it has confirmed, if it unloads the log at the
        same time.

        The new layout is committed before this step, so no producer waits for it.
        """
        if not isinstance(self._any_plane, GatedDataPlane):
            return
        states = self._call_all([partial(self._any_plane.probe_fence, log) for log in logs])
        fenced = [log for log, state in zip(logs, states, strict=True) if state is FenceState.FENCED]
        if fenced:
            raise HeldUp(
                f"{', '.join(fenced)} stayed fenced and is being reloaded; probing again", PROBE_AGAIN_SECONDS
            )
        reopened = [log for log, state in zip(logs, states, strict=True) if state is FenceState.OPEN]
        self._call_all([partial(self._any_plane.terminate_segment, log) for log in reopened])
        if reopened:
            raise HeldUp(
                f"{', '.join(reopened)} was open again after its termination, and is terminated again; probing again",
                PROBE_AGAIN_SECONDS,
            )

    def create_cursors(
        self, operation: Operation, key: SubscriptionKey, logs: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Create the cursors of a new subscription of standard consumers on those of `logs` that need a gate because
        they descend from a sealed segment which the subscription reads, and record and close the gates. The data plane
        sets the dispatch rate before it creates the cursor. A recorded gate that is no longer closed stays as it is.
        Return the `logs` that need no gate or have such a gate, in their order, whose cursors are not created here, and
        the logs that need a gate and do not exist: the reconciler creates these logs again with every cursor and gate.
        Raises SubscriptionNotFound, Unsupported on a data plane without gates, and the errors of the calls.
        """
        with self._store.transaction() as tx:
            known = {gate.segment_id: gate for gate in gates.gates_of(tx, key)}
            behind = [log for log in gates.behind_read_by(tx, key) if log.backing_topic in {*logs}]
            gates.close(tx, key, [log.segment_id for log in behind if log.segment_id not in known])
        plane = self._plane(operation.topic_name)
        gated = [
            log.backing_topic
            for log in behind
            if log.segment_id not in known or known[log.segment_id].state is gates.GateRecord.CLOSED
        ]

        def is_missing(backing_topic: str) -> bool:
            try:
                plane.close_gate(backing_topic, key.name)
            except SegmentNotFound:
                return True
            return False

        missing = self._call_all([partial(is_missing, backing_topic) for backing_topic in gated])
        return [log for log in logs if log not in gated], list(compress(gated, missing))

    def remove(self, operation: Operation, name: str) -> None:
        """Remove the dispatch rates of a deleted subscription, by opening its recorded gates; a new subscription of the name would
        inherit the rates. No effect on a data plane without gates.
        """
        if not isinstance(self._any_plane, GatedDataPlane):
            return
        with self._store.single_statement() as tx:
            left = gates.gates_of(tx, SubscriptionKey(operation.topic_id, name))
        self._call_all([partial(self._any_plane.open_gate, gate.backing_topic, name) for gate in left])

    def close_for_seek(self, operation: Operation, key: SubscriptionKey, instant_ms: int) -> None:
        """Record and close the gates of the segments with a sealed ancestor that may have messages to read after a seek
        to `instant_ms` (epoch milliseconds), before a cursor moves. At the data plane a missing log is skipped, and a
        missing cursor created. Raises SubscriptionNotFound, and Unsupported on a data plane without gates.
        """
        since = to_datetime(max(instant_ms - CLOCKS_APART_MS, 0))
        with self._store.transaction() as tx:
            behind = gates.behind_read_by(tx, key, since=since)
            gates.close(tx, key, [log.segment_id for log in behind])
        plane = self._plane(operation.topic_name)

        def close(backing_topic: str) -> None:
            with suppress(NotFound):  # a log that is missing delivers nothing
                plane.close_gate(backing_topic, key.name)

        self._call_all([partial(close, log.backing_topic) for log in behind])

    def move_cursors(
        self, operation: Operation, key: SubscriptionKey, logs: Sequence[SeekLog], instant_ms: int | None
    ) -> Mapping[str, object]:
        """Move the cursors to `instant_ms` (epoch milliseconds; None: the end), ancestors first. Return `logs` (the
        number), `read` (sorted ids of the sealed segments that are read to their end) and `missing` (ids of the
        segments without a log) for the journal.

        In a move to an instant, the cursor of a segment stays at its barrier while an ancestor is unread. An ancestor
        counts as read after the data plane has persisted its cursor at the end, and also if it is in `missing`. A
        missing cursor is created for a move to an instant; for a move to the end, its segment is in `missing`. Raises
        Unsupported on a data plane without gates.
        """
        with self._store.single_statement() as tx:
            layout = layouts.load_layout(tx, operation.topic_id)
        plane = self._plane(operation.topic_name)
        known = {log.segment_id for log in logs}
        read: set[int] = set()
        missing: list[int] = []
        for generation in _generations(layout, logs):
            moves = [
                partial(
                    _move,
                    plane,
                    key.name,
                    log,
                    instant_ms,
                    is_free=layout.ancestors(log.segment_id) & known <= read,
                )
                for log in generation
            ]
            for log, is_read in zip(generation, self._call_all(moves), strict=True):
                if is_read is None:
                    missing.append(log.segment_id)
                if is_read is not False and log.is_sealed:
                    read.add(log.segment_id)
        return {"logs": len(logs), "read": sorted(read - {*missing}), "missing": missing}

    def _plane(self, topic: str) -> GatedDataPlane:
        """Return the data plane. Raises Unsupported if the data plane has no gates."""
        if not isinstance(self._any_plane, GatedDataPlane):
            raise Unsupported(
                f"data plane {self._any_plane.name!r} of {topic} has no gates, which keep standard consumers in order; "
                "set the consumers of its subscriptions to cleave"
            )
        return self._any_plane


def _generations(layout: SegmentGraph, logs: Iterable[SeekLog]) -> list[list[SeekLog]]:
    """Return the logs in groups, so that the ancestors of a log are in earlier groups. Within a group the logs keep
    their order; a log of a segment that is not in the layout is in the first group.
    """
    depth: dict[int, int] = {}
    for segment_id in sorted(layout.segments):
        parents = [i for i in layout.segments[segment_id].parent_ids if i in depth]
        depth[segment_id] = max((depth[i] + 1 for i in parents), default=0)
    groups: dict[int, list[SeekLog]] = {}
    for log in logs:
        groups.setdefault(depth.get(log.segment_id, 0), []).append(log)
    return [groups[level] for level in sorted(groups)]


def _move(
    plane: GatedDataPlane, name: str, log: SeekLog, instant_ms: int | None, *, is_free: bool
) -> bool | None:
    """Move the cursor of one log to `instant_ms` (None: to the end). An instant is replaced by the begin of
    the log, so that the cursor stays at the barrier, unless `is_free`. Return True if the log is sealed and
    the cursor is persisted at its end; None if the log is missing, or, for a move to the end, the cursor;
    otherwise False.
    """
    try:
        if instant_ms is None:
            plane.skip_all(log.backing_topic, name)
        else:
            seek(plane, log.backing_topic, name, instant_ms if is_free else EARLIEST_MS)
        return log.is_sealed and plane.persist_cursor_at_end(log.backing_topic, name)
    except NotFound:
        return None


def seek(plane: DataPlane, log: str, name: str, instant_ms: int) -> None:
    """Move the cursor to the instant. If the log has no cursor, because it was sealed before the subscription was created, create the
    cursor first. Raises NotFound if the log does not exist.
    """
    try:
        plane.seek(log, name, instant_ms)
    except SubscriptionNotFound:
        plane.create_subscription(log, name)
        plane.seek(log, name, instant_ms)
