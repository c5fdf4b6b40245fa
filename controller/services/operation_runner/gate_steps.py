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
        """Close the gate of each child for each subscription of standard consumers (`names`) at the data plane, then
        record the gates as closed. The rows of gates that are recorded already do not change, and no row is written
        if the claim is lost or the operation is committed. No effect without `names`, and for operations whose
        children succeed no log.

        Raises Unsupported on a data plane without gates, the errors of `close_gate`, such as SegmentNotFound,
        DataGone and DataPlaneUnavailable, HeldUp if a claim is lost, and the errors of `Store.transaction`. After an
        error of a call no row is written, but some gates may be closed.
        """
        if not (names and operation.kind.succeeds_logs):
            return
        plane = self._plane(operation.topic_name)
        for name in names:  # one call at a time for each log
            self._call_all(
                [partial(plane.close_gate, child.backing_topic, name) for child in operation.children]
            )
        pairs = [(name, child.plan.segment_id) for name in names for child in operation.children]
        with self._store.transaction() as tx:
            gates.note_closed(tx, operation, pairs)

    def keep_closed(self, operation: Operation, names: Sequence[str]) -> None:
        """Read the state of each child's gate at the data plane, for each subscription of standard consumers
        (`names`), and close each gate that is not closed there. The operation does this before it terminates the
        parents. Writes no rows. No effect without `names`, and for operations whose children succeed no log.

        Raises Unsupported on a data plane without gates, the errors of `gate_state` and `close_gate`, such as
        SegmentNotFound, DataGone and DataPlaneUnavailable, and HeldUp if a claim is lost.
        """
        if not (names and operation.kind.succeeds_logs):
            return
        plane, logs = self._plane(operation.topic_name), [child.backing_topic for child in operation.children]
        for name in names:  # one call at a time for each log
            states = self._call_all([partial(plane.gate_state, log, name) for log in logs])
            unclosed = [log for log, state in zip(logs, states, strict=True) if state is not GateState.CLOSED]
            self._call_all([partial(plane.close_gate, log, name) for log in unclosed])

    def probe_fences(self, logs: Sequence[str]) -> None:
        """Verify that consumers can connect to these logs, which were terminated, and that the logs are still
        terminated. Returns if each log is terminated or missing. No effect on a data plane without gates.

        The data plane reloads a log that refuses consumers (FENCED); then HeldUp is raised, and no open log is
        terminated again in this call. If no log refuses consumers but logs are open again, the open logs are
        terminated again, and HeldUp is raised. The caller repeats the step after HeldUp. Also raises the errors of
        `probe_fence` (Unsupported if this process lacks the library for the probe) and of `terminate_segment`.

        A broker (seen with 4.2.4) forgets a termination that it has confirmed, if it unloads the log at the same
        time. The new layout is committed before this step, so no producer waits for the step.
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
        """Create the cursors of a new subscription of standard consumers on those of `logs` that need a gate, which
        are logs that descend from a sealed segment which the subscription reads. The gates are recorded and committed
        as closed, then closed at the data plane, which creates the cursors. A gate whose recorded state is no longer
        closed does not change.

        Return two lists. The first has the `logs`, in their order, whose cursors the caller must still create: logs
        that need no gate, and logs whose gate is no longer closed. The second has the logs that need a gate and do
        not exist: the reconciler creates these logs again with every cursor and gate.

        Raises SubscriptionNotFound, Unsupported on a data plane without gates (the gates are recorded then), the
        errors of `close_gate` except SegmentNotFound, HeldUp if a claim is lost, and the errors of
        `Store.transaction`.
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
        """Open at the data plane the recorded gates of a deleted subscription, so that no dispatch rate remains for a
        new subscription of the name. The rows of the gates stay. Gates on pruned segments are left out. No effect
        without recorded gates, or on a data plane without gates. Raises the errors of `open_gate`, HeldUp if a claim
        is lost, and the errors of `Store.single_statement`.
        """
        if not isinstance(self._any_plane, GatedDataPlane):
            return
        with self._store.single_statement() as tx:
            left = gates.gates_of(tx, SubscriptionKey(operation.topic_id, name))
        self._call_all([partial(self._any_plane.open_gate, gate.backing_topic, name) for gate in left])

    def close_for_seek(self, operation: Operation, key: SubscriptionKey, instant_ms: int) -> None:
        """Record and close the gates of the segments that have a sealed ancestor which may have messages to read
        after a seek to `instant_ms` (milliseconds since the Unix epoch). Call this function before a cursor moves. An
        ancestor counts if it was sealed at or after the instant less `CLOCKS_APART_MS`, by which clocks may differ.
        The rows are committed first; each of these gates becomes closed, whatever its state was.

        At the data plane a missing log is skipped, and a missing cursor is created. Raises SubscriptionNotFound,
        Unsupported on a data plane without gates, the errors of `close_gate` except NotFound, HeldUp if a claim is
        lost, and the errors of `Store.transaction`.
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
        """Move the cursors of the subscription on `logs` to `instant_ms` (milliseconds since the Unix epoch; None:
        the end of each log), ancestors first. Return for the journal `logs` (the number of logs), `read` (sorted ids
        of the sealed segments whose cursors are persisted at the end) and `missing` (ids of the segments without a
        log). Writes no rows.

        In a move to an instant, the cursor of a segment moves only if all its ancestors among `logs` count as read;
        otherwise the cursor is put at the beginning of the log, where the barrier is. A sealed ancestor counts as
        read if it is in `read` or `missing`. A missing cursor is created for a move to an instant; in a move to the
        end, a segment without a cursor is in `missing`.

        Raises Unsupported on a data plane without gates, the errors of the calls except NotFound, HeldUp if a claim
        is lost, and the errors of `Store.single_statement`. After an error, some cursors may have moved.
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
    """Move the cursor of the subscription `name` on one log to `instant_ms` (milliseconds since the Unix epoch; None:
    the end). In a move to an instant, `is_free` False moves the cursor to the beginning of the log instead, so that
    the cursor stays at the barrier.

    Return True if the log is sealed and the cursor is persisted at the end of the log. Return None if the log is
    missing, or if the cursor is missing in a move to the end. Otherwise return False: the log is active, or messages
    remain to be read. Raises the errors of the data plane except NotFound.
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
    """Move the cursor of the subscription `name` on `log` to the instant (milliseconds since the Unix epoch). If the
    cursor does not exist, because the log was sealed before the subscription was created, create the cursor first.
    Raises NotFound if the log does not exist, and the other errors of the data plane. If the second call fails after
    the cursor was created, the cursor stays at the earliest message.
    """
    try:
        plane.seek(log, name, instant_ms)
    except SubscriptionNotFound:
        plane.create_subscription(log, name)
        plane.seek(log, name, instant_ms)
