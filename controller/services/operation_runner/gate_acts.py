"""The part of an operation's steps that concerns gates: close them, look at them, move cursors behind them, remove them.

`log_acts` calls this where a topic has subscriptions that standard consumers read. Every act may be repeated. No step opens the gate
of a subscription that lives: the gate keeper does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from controller.clock import to_datetime
from controller.dataplane.base import DataPlane
from controller.dataplane.gates import GatedDataPlane
from controller.domain.errors import HeldUp, NotFound, SubscriptionNotFound, Unsupported
from controller.domain.gates import FenceState, GateState
from controller.domain.operation import Operation
from controller.domain.segment_graph import SegmentGraph
from controller.services.operation_runner.calls import CallAll
from controller.store.journal.seeks import CLOCKS_APART_MS, SeekLog
from controller.store.postgres.engine import Store
from controller.store.topics import gates, layouts
from controller.store.topics.bucket_owners import SubscriptionKey

PROBE_AGAIN_SECONDS = 0.25
"""A broker needs some 100 ms to load a topic again."""
EARLIEST_MS = 0


class GateActs:
    """Acts on the gates of one data plane, under the claims that `call_all` keeps alive."""

    def __init__(self, store: Store, plane: DataPlane, call_all: CallAll) -> None:
        self._store, self._any_plane, self._call_all = store, plane, call_all

    def close_children(self, operation: Operation, names: Sequence[str]) -> None:
        """Close the gate of each child for each subscription of standard consumers (`names`), and record the gates."""
        if not (names and operation.kind.succeeds_logs):
            return
        plane = self._plane(operation.topic_name)
        pairs = [(name, child) for name in names for child in operation.children]
        self._call_all([partial(plane.close_gate, child.backing_topic, name) for name, child in pairs])
        with self._store.transaction() as tx:
            gates.note_closed(tx, operation, [(name, child.plan.segment_id) for name, child in pairs])

    def keep_closed(self, operation: Operation, names: Sequence[str]) -> None:
        """Look at the children's gates before the parents are terminated, and close what is not closed."""
        if not (names and operation.kind.succeeds_logs):
            return
        plane = self._plane(operation.topic_name)
        pairs = [(child.backing_topic, name) for name in names for child in operation.children]
        states = self._call_all([partial(plane.gate_state, log, name) for log, name in pairs])
        unclosed = [pair for pair, state in zip(pairs, states, strict=True) if state is not GateState.CLOSED]
        self._call_all([partial(plane.close_gate, log, name) for log, name in unclosed])

    def probe_fences(self, logs: Sequence[str]) -> None:
        """Have the data plane heal terminated logs that refuse consumers. Raises HeldUp while one of them stays fenced.

        The layout has moved by then: no producer waits for this.
        """
        if not isinstance(self._any_plane, GatedDataPlane):
            return
        found = self._call_all([partial(self._any_plane.probe_fence, log) for log in logs])
        fenced = [log for log, state in zip(logs, found, strict=True) if state is FenceState.FENCED]
        if fenced:
            raise HeldUp(
                f"{', '.join(fenced)} stayed fenced and is loaded again; looking again", PROBE_AGAIN_SECONDS
            )

    def create_cursors(self, operation: Operation, key: SubscriptionKey, logs: Sequence[str]) -> list[str]:
        """Close the gates of a new subscription of standard consumers: the rate first, then the cursor. Return the other logs."""
        with self._store.transaction() as tx:
            known = {one.segment_id: one for one in gates.gates_of(tx, key)}
            behind = [one for one in gates.behind_read_by(tx, key) if one.backing_topic in {*logs}]
            new = [one for one in behind if one.segment_id not in known]
            gates.close(tx, key, [one.segment_id for one in new])
        plane = self._plane(operation.topic_name)
        closed = [
            one
            for one in behind
            if one.segment_id not in known or known[one.segment_id].state is gates.GateRecord.CLOSED
        ]
        self._call_all([partial(plane.close_gate, one.backing_topic, key.name) for one in closed])
        gated = {one.backing_topic for one in closed}
        return [log for log in logs if log not in gated]

    def remove(self, operation: Operation, name: str) -> None:
        """Remove what the gates of a deleted subscription have left on logs, or the name could not be used again."""
        if not isinstance(self._any_plane, GatedDataPlane):
            return
        with self._store.single_statement() as tx:
            left = gates.gates_of(tx, SubscriptionKey(operation.topic_id, name))
        self._call_all([partial(self._any_plane.open_gate, one.backing_topic, name) for one in left])

    def close_for_seek(self, operation: Operation, key: SubscriptionKey, instant_ms: int) -> None:
        """Close the gates of the segments that have an ancestor with something to read after the seek, before a cursor moves."""
        since = to_datetime(max(instant_ms - CLOCKS_APART_MS, 0))
        with self._store.transaction() as tx:
            behind = gates.behind_read_by(tx, key, since=since)
            gates.close(tx, key, [one.segment_id for one in behind])
        plane = self._plane(operation.topic_name)

        def close(log: str) -> None:
            with suppress(NotFound):  # nothing to read there
                plane.close_gate(log, key.name)

        self._call_all([partial(close, one.backing_topic) for one in behind])

    def move_cursors(
        self, operation: Operation, key: SubscriptionKey, logs: Sequence[SeekLog], instant_ms: int | None
    ) -> Mapping[str, object]:
        """Move the cursors from ancestors to descendants; None: behind everything. Return what the journal keeps.

        A segment stays at its barrier while an ancestor has something to read. A sealed segment counts as read only when the data
        plane has written its cursor down.
        """
        with self._store.single_statement() as tx:
            layout = layouts.load_layout(tx, operation.topic_id)
        plane = self._plane(operation.topic_name)
        known = {one.segment_id for one in logs}
        read: set[int] = set()
        missing: list[int] = []
        for generation in _generations(layout, logs):
            moves = [
                partial(
                    _move,
                    plane,
                    key.name,
                    one,
                    instant_ms,
                    is_free=layout.ancestors(one.segment_id) & known <= read,
                )
                for one in generation
            ]
            for one, is_read in zip(generation, self._call_all(moves), strict=True):
                if is_read is None:
                    missing.append(one.segment_id)
                if is_read is not False and one.is_sealed:
                    read.add(one.segment_id)
        return {"logs": len(logs), "read": sorted(read - {*missing}), "missing": missing}

    def _plane(self, topic: str) -> GatedDataPlane:
        if not isinstance(self._any_plane, GatedDataPlane):
            raise Unsupported(
                f"data plane {self._any_plane.name!r} of {topic} has no gates, which keep standard consumers in order; "
                "set the consumers of its subscriptions to cleave"
            )
        return self._any_plane


def _generations(layout: SegmentGraph, logs: Iterable[SeekLog]) -> list[list[SeekLog]]:
    """Return the logs in groups, each behind the groups that hold its ancestors."""
    depth: dict[int, int] = {}
    for segment_id in sorted(layout.segments):
        parents = [i for i in layout.segments[segment_id].parent_ids if i in depth]
        depth[segment_id] = max((depth[i] + 1 for i in parents), default=0)
    groups: dict[int, list[SeekLog]] = {}
    for one in logs:
        groups.setdefault(depth.get(one.segment_id, 0), []).append(one)
    return [groups[level] for level in sorted(groups)]


def _move(
    plane: GatedDataPlane, name: str, log: SeekLog, instant_ms: int | None, *, is_free: bool
) -> bool | None:
    """Return True if a sealed log is read to its end, and the data plane keeps that; None if there is no such log."""
    try:
        if instant_ms is None:
            plane.skip_all(log.backing_topic, name)
        else:
            _seek(plane, log.backing_topic, name, instant_ms if is_free else EARLIEST_MS)
        return log.is_sealed and plane.persist_cursor_at_end(log.backing_topic, name)
    except NotFound:
        return None


def _seek(plane: DataPlane, log: str, name: str, instant_ms: int) -> None:
    """Move the cursor. A log that was sealed before the subscription began has no cursor yet. Raises NotFound."""
    try:
        plane.seek(log, name, instant_ms)
    except SubscriptionNotFound:
        plane.create_subscription(log, name)
        plane.seek(log, name, instant_ms)
