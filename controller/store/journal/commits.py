"""Commits: the one transaction in which an operation becomes true, or is given up.

The topic row is locked first and the operation second, by its claim; then parents are sealed, children become active,
the epoch rises by one and history gets its row, all or nothing. A commit never loses what happened meanwhile: if the
subscriptions are not those that the children were given, or an older operation of a topic being deleted still lives,
nothing is written and the runner looks again. Logs are not touched here; those that became superfluous are queued in
`tombstones`.

Reshapes commit by one statement, however many they are. It waits for nobody: a topic whose row (or whose due
evaluation) somebody else holds is left out, because the others' parents are terminated already and take no writes
until this commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, text

from controller.clock import to_ms
from controller.domain.decision import is_for_consumers
from controller.domain.errors import CleaveError, HeldUp, InvariantViolated, LostRace
from controller.domain.operation import SUBSCRIPTION, UNDOES, Operation, OperationKind
from controller.domain.segment import Segment
from controller.store.decisions import evaluations
from controller.store.journal import adoptions, seeks, steps, tombstones, topic_intents
from controller.store.journal.steps import GIVEN, HELD, JOURNAL, STEP_TYPES, StepRecord, fenced_out
from controller.store.load.forgetting import FORGET_LOADS
from controller.store.mirrors import commits as mirror_commits
from controller.store.postgres.clock import database_now
from controller.store.postgres.prepared import Prepared
from controller.store.topics import deletion, drains, gates, layout_changes, layouts, topics
from controller.store.topics.topics import TopicRow, TopicState

ABORT_PAUSE_SECONDS = 30.0
"""After an abort nothing is decided automatically about the topic for this long."""
ROWS_HELD_SECONDS = 0.01
"""Rows are held for the length of somebody's transaction: milliseconds, as a rule."""

# A data-modifying WITH sees one snapshot throughout; what is written hangs on the row that passed the checks, and a
# locked row is compared anew with what others committed meanwhile. That no parent is sealed is asked first and
# demanded again by the update; the second line is the database's own: ACTIVE ranges exclude each other and tile the
# ring.
COMMIT = Prepared(
    "commit_reshapes",
    f"""{GIVEN}
    , free_topic AS MATERIALIZED (
        SELECT topic_id FROM cleave.topic WHERE topic_id = ANY (:topic_ids)
         ORDER BY topic_id FOR NO KEY UPDATE SKIP LOCKED)
    , locked AS MATERIALIZED (
        SELECT topic_id FROM cleave.evaluation WHERE topic_id = ANY (ARRAY(SELECT topic_id FROM free_topic))
         ORDER BY topic_id FOR UPDATE SKIP LOCKED)
    , held AS MATERIALIZED (
        SELECT o.operation_id, o.intended_at, g.topic_id, g.states, g.stamps,
               coalesce(g.subscription_version, o.subscription_version) AS subscription_version
          FROM given g JOIN cleave.operation o USING (operation_id)
         WHERE g.topic_id = ANY (ARRAY(SELECT topic_id FROM locked)) AND {HELD} AND o.state = g.seen_state
           AND NOT EXISTS (SELECT FROM cleave.operation_parent p JOIN cleave.segment s USING (topic_id, segment_id)
                            WHERE p.operation_id = o.operation_id AND s.state <> 'ACTIVE')
           FOR NO KEY UPDATE OF o SKIP LOCKED)
    , raised AS (
        UPDATE cleave.topic t
           SET epoch = t.epoch + 1, row_version = t.row_version + 1,
               last_split_at = CASE WHEN 'last_split_at' = ANY (h.stamps)
                                    THEN greatest(t.last_split_at, h.intended_at) ELSE t.last_split_at END,
               last_merge_at = CASE WHEN 'last_merge_at' = ANY (h.stamps)
                                    THEN greatest(t.last_merge_at, h.intended_at) ELSE t.last_merge_at END,
               last_rebucket_at = CASE WHEN 'last_rebucket_at' = ANY (h.stamps)
                                       THEN greatest(t.last_rebucket_at, h.intended_at) ELSE t.last_rebucket_at END,
               last_consumer_act_at = CASE WHEN 'last_consumer_act_at' = ANY (h.stamps)
                                           THEN greatest(t.last_consumer_act_at, h.intended_at) ELSE t.last_consumer_act_at END
          FROM held h
         WHERE t.topic_id = h.topic_id AND t.subscription_version = h.subscription_version
           AND t.state IN ('live', 'deleting')
     RETURNING t.topic_id, t.epoch, h.operation_id, h.subscription_version, h.states)
    , moved AS (
        UPDATE cleave.operation o
           SET state = 'committed', row_version = o.row_version + 1, epoch = r.epoch, attempts = 0, last_error = NULL,
               subscription_version = r.subscription_version,
               fenced_at = CASE WHEN 'fenced' = ANY (r.states) THEN CAST(:started_at AS timestamptz) ELSE o.fenced_at END,
               committed_at = clock_timestamp()
          FROM raised r WHERE o.operation_id = r.operation_id
     RETURNING o.operation_id, o.topic_id, o.claim_term, o.kind, o.origin, o.actor, o.reason, o.epoch)
    , change AS (
        INSERT INTO cleave.layout_change (topic_id, epoch, kind, operation_id, origin, actor, reason)
        SELECT topic_id, epoch, kind, operation_id, origin, actor, reason FROM moved ORDER BY topic_id
     RETURNING topic_id, epoch, operation_id, committed_at)
    , sealed AS (
        UPDATE cleave.segment s
           SET state = 'SEALED', sealed_epoch = c.epoch, sealed_at = c.committed_at,
               terminated_position = coalesce(
                   g.detail -> 'positions' ->> s.backing_topic,
                   (SELECT j.detail -> 'positions' ->> s.backing_topic FROM cleave.operation_step j
                     WHERE j.operation_id = c.operation_id AND j.detail -> 'positions' ? s.backing_topic
                     ORDER BY j.sequence DESC LIMIT 1))
          FROM change c JOIN given g USING (operation_id) JOIN cleave.operation_parent p USING (operation_id)
         WHERE s.topic_id = p.topic_id AND s.segment_id = p.segment_id AND s.state = 'ACTIVE')
    , parent AS MATERIALIZED (
        SELECT c.operation_id, s.segment_id, s.range_start, s.range_end, s.merge_depth, p.ordinal
          FROM change c JOIN cleave.operation_parent p USING (operation_id)
          JOIN cleave.segment s ON s.topic_id = p.topic_id AND s.segment_id = p.segment_id)
    , child AS (
        INSERT INTO cleave.segment (topic_id, segment_id, range_start, range_end, merge_depth, bucket_splits,
                                    created_epoch, created_at, backing_topic)
        SELECT c.topic_id, r.segment_id, r.range_start, r.range_end,
               coalesce(r.merge_depth,
                        (SELECT max(p.merge_depth) + CAST(count(*) >= 2 AS integer) FROM parent p
                          WHERE p.operation_id = c.operation_id AND p.range_start <= r.range_end
                            AND r.range_start <= p.range_end)),
               r.bucket_splits, c.epoch, c.committed_at, r.backing_topic
          FROM change c JOIN cleave.operation_child r USING (operation_id))
    , link AS (
        INSERT INTO cleave.segment_parent (topic_id, child_id, parent_id, ordinal)
        SELECT c.topic_id, r.segment_id, p.segment_id,
               row_number() OVER (PARTITION BY r.operation_id, r.segment_id ORDER BY p.ordinal) - 1
          FROM change c JOIN cleave.operation_child r USING (operation_id) JOIN parent p USING (operation_id)
         WHERE p.range_start <= r.range_end AND r.range_start <= p.range_end)
    , freed AS (
        UPDATE cleave.operation_parent p SET live = false FROM moved m
         WHERE p.operation_id = m.operation_id AND p.live)
    , journal AS ({JOURNAL})
    SELECT m.operation_id, m.epoch, clock_timestamp() AS now,
           ARRAY(SELECT u.name FROM cleave.subscription u WHERE u.topic_id = m.topic_id) AS subscriptions
      FROM moved m
""",
    STEP_TYPES | {"topic_ids": "bigint[]"},
)
WHY_LEFT = Prepared(
    "why_left_out",
    f"""{GIVEN}
    SELECT o.operation_id, {HELD} AND o.state = g.seen_state AS is_held, t.state AS topic_state, t.subscription_version,
           (SELECT count(*) FROM cleave.operation_parent p
             WHERE p.operation_id = o.operation_id
               AND (SELECT s.state FROM cleave.segment s
                     WHERE s.topic_id = p.topic_id AND s.segment_id = p.segment_id) <> 'ACTIVE') = 0 AS has_active_parents
      FROM given g JOIN cleave.operation o USING (operation_id) JOIN cleave.topic t ON t.topic_id = o.topic_id
""",
    {"given": "text", "runner": "text"},
)
STAMPS: Mapping[OperationKind, tuple[str, ...]] = {
    OperationKind.SPLIT: ("last_split_at",),
    OperationKind.MERGE: ("last_merge_at",),
    OperationKind.REBUCKET: ("last_rebucket_at",),
    OperationKind.RECUT: ("last_split_at", "last_merge_at"),
}
"""The cooldowns that a kind begins, from the instant of its intent."""
_PRUNE = """
    UPDATE cleave.segment SET pruned_epoch = :epoch, pruned_at = :at
     WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids) AND state = 'SEALED' AND pruned_epoch IS NULL
 RETURNING segment_id, backing_topic
"""
_HAS_HISTORY = "SELECT EXISTS (SELECT FROM cleave.layout_change WHERE topic_id = :topic_id)"
_KEEP_SUBSCRIPTION = """
    UPDATE cleave.subscription SET state = 'live' WHERE topic_id = :topic_id AND name = :name AND state = 'deleting'
"""
_MAY_HAVE_MOVED = """
    SELECT EXISTS (SELECT FROM cleave.operation_step WHERE operation_id = :operation_id AND step = 'stop-readers')
"""
_FORGET_SUBSCRIPTION = (
    "DELETE FROM cleave.subscription WHERE topic_id = :topic_id AND name = :name AND state = 'deleting'"
)


@dataclass(frozen=True, slots=True)
class Committed:
    """`epoch` None: the operation made none. `subscriptions`: every name recorded at the commit, those that end
    included.
    """

    epoch: int | None
    now_ms: int
    subscriptions: frozenset[str] = frozenset()


def commit_reshapes(
    tx: Connection, records: Sequence[StepRecord], runner: str, *, started_at_ms: int
) -> dict[int, Committed]:
    """Makes reshapes true whose layout Cleave keeps; what came of it by id of those that were committed.

    At most one operation a topic. Left out are those whose claim, state or topic has moved on, whose subscriptions
    are not as noted, whose parents are not all active, or whose rows somebody holds: `why_left` tells. Raises
    InvariantViolated when a law of some layout would break: then nothing was committed for any.
    """
    stamps = {one.operation.operation_id: _stamps(one.operation) for one in records}
    parameters = steps.statement_parameters(records, runner, started_at_ms, stamps) | {
        "topic_ids": [one.operation.topic_id for one in records]
    }
    return {
        row.operation_id: Committed(row.epoch, to_ms(row.now), frozenset(row.subscriptions))
        for row in COMMIT.execute(tx, parameters)
    }


def _stamps(operation: Operation) -> tuple[str, ...]:
    stamps = STAMPS.get(operation.kind, ())
    if is_for_consumers(operation.kind, operation.reason):
        return (*stamps, "last_consumer_act_at")
    return stamps


def why_left(tx: Connection, records: Sequence[StepRecord], runner: str) -> dict[int, CleaveError]:
    """Why `commit_reshapes` left these out, by operation id: FencedOut, LostRace (look again) or InvariantViolated."""
    parameters = steps.held_parameters([one.operation for one in records], runner)
    seen = {row.operation_id: row for row in WHY_LEFT.execute(tx, parameters)}
    return {
        one.operation.operation_id: _why_left(one, seen.get(one.operation.operation_id), runner)
        for one in records
    }


def _why_left(record: StepRecord, seen: Row[Any] | None, runner: str) -> CleaveError:
    operation = record.operation
    if seen is None or not seen.is_held:  # there is no row where a fail-over lost the intent
        return fenced_out(operation, runner)
    if seen.topic_state not in (TopicState.LIVE, TopicState.DELETING):
        return InvariantViolated(
            f"topic {operation.topic_name} is {seen.topic_state} under {operation.kind} {operation.operation_id}"
        )
    if not seen.has_active_parents:
        return InvariantViolated(
            f"parents {operation.parent_ids} of operation {operation.operation_id} are not all active"
        )
    if record.noted_version != seen.subscription_version:
        return _stale_subscriptions(operation.topic_name, seen.subscription_version, record.noted_version)
    return HeldUp(f"somebody holds the rows of topic {operation.topic_name}; trying again", ROWS_HELD_SECONDS)


def commit_one(tx: Connection, record: StepRecord, runner: str, *, started_at_ms: int) -> Committed:
    """Makes one operation of any other kind true, or a reshape that a broker did. Waits for the topic's row.

    Raises FencedOut when the claim is lost, LostRace when the runner has to look again, InvariantViolated when a law of
    the layout would break. All leave no trace.
    """
    operation = record.operation
    topic = topics.get_topic(tx, operation.topic_id, lock=True)
    # The claim comes first: a stale runner learns that it is stale, whatever else may have changed.
    seen = _record_held(tx, record, runner, started_at_ms)
    if operation.is_mirrored:
        epoch: int | None = mirror_commits.apply(tx, topic, operation, record.detail)
    else:
        epoch = _ACTS[operation.kind](tx, topic, record)
    return Committed(epoch, seen)


def abort(
    tx: Connection,
    record: StepRecord,
    runner: str,
    *,
    started_at_ms: int,
    pause_seconds: float = ABORT_PAUSE_SECONDS,
) -> None:
    """Ends an operation that is aborting: its reserved children are queued for deletion, its parents free again.

    A topic whose creation ends here is deleted, and its name free; one whose deletion ends here is live again. After a seek its
    subscription is handed out again. Otherwise automatic decisions on the topic pause for `pause_seconds`. Raises FencedOut when
    the claim is lost.
    """
    operation = record.operation
    topic = topics.get_topic(tx, operation.topic_id, lock=True)
    _record_held(tx, record, runner, started_at_ms)
    logs = {child.plan.segment_id: child.backing_topic for child in operation.children}
    gates.forget(tx, topic.topic_id, logs)
    _bury(tx, topic, operation, logs, f"{operation.kind} was aborted")
    if topic.state is TopicState.CREATING:
        deletion.end_topic(tx, topic, topic.epoch, database_now(tx))
    elif operation.kind is OperationKind.SEEK:
        if tx.execute(text(_MAY_HAVE_MOVED), {"operation_id": operation.operation_id}).scalar_one():
            seeks.commit(tx, operation, read=(), missing=())
        drains.tell(tx, topic.topic_id)  # its consumers may read on
    elif operation.kind in (OperationKind.DETACH, OperationKind.DELETE):
        topics.update_topic(tx, topic, state=TopicState.LIVE.value)
    elif operation.kind is OperationKind.SUBSCRIPTION_CREATE:
        topic_intents.undo_subscription(tx, topic, operation)
    elif operation.kind is OperationKind.SUBSCRIPTION_DELETE:
        _keep_subscription(tx, topic, operation)
    else:
        evaluations.defer(tx, [topic.topic_id], pause_seconds)


def _record_held(tx: Connection, record: StepRecord, runner: str, started_at_ms: int) -> int:
    moved = steps.record(tx, [record], runner, started_at_ms=started_at_ms)
    if record.operation.operation_id not in moved:
        raise fenced_out(record.operation, runner)
    return moved[record.operation.operation_id]


def _create(tx: Connection, topic: TopicRow, record: StepRecord) -> int:
    if topic.state is not TopicState.CREATING:
        raise LostRace(f"topic {topic.name} is {topic.state} by now; look again", 0.0, what="operation")
    _demand_noted(topic, record)
    operation, epoch = record.operation, _next_epoch(tx, topic)
    at = layout_changes.write(tx, topic, operation, epoch)
    segments = (
        Segment(
            c.plan.segment_id, c.plan.hash_range, bucket_splits=c.plan.bucket_splits, created_at_ms=to_ms(at)
        )
        for c in operation.children
    )
    logs = {child.plan.segment_id: child.backing_topic for child in operation.children}
    layouts.insert_segments(tx, topic.topic_id, segments, logs, at)
    topics.update_topic(tx, topic, state=TopicState.LIVE.value, epoch=epoch)
    return epoch


def _adopt(tx: Connection, topic: TopicRow, record: StepRecord) -> int:
    """Two epochs: the topic as it was found, and the segments that follow it. The old logs are closed already."""
    if topic.state not in (TopicState.CREATING, TopicState.DELETING):
        raise InvariantViolated(f"topic {topic.name} is {topic.state} under its adoption")
    _demand_noted(topic, record)
    layout_changes.write(tx, topic, record.operation, adoptions.FOUND_EPOCH)
    at = layout_changes.write(tx, topic, record.operation, adoptions.FIRST_EPOCH)
    adoptions.insert_generations(tx, topic, record.operation, at)
    state = TopicState.LIVE if topic.state is TopicState.CREATING else topic.state
    topics.update_topic(tx, topic, state=state.value, epoch=adoptions.FIRST_EPOCH)
    return adoptions.FIRST_EPOCH


def _delete(tx: Connection, topic: TopicRow, record: StepRecord) -> int:
    deletion.demand_alone(tx, topic, record.operation)
    epoch = _next_epoch(tx, topic)
    at = layout_changes.write(tx, topic, record.operation, epoch)
    logs = deletion.end_segments(tx, topic.topic_id, epoch, at)
    _bury(tx, topic, record.operation, logs, "the topic was deleted")
    deletion.end_topic(tx, topic, epoch, at)
    return epoch


def _prune(tx: Connection, topic: TopicRow, record: StepRecord) -> int | None:
    """What a seek has un-drained since the intent stays; with nothing left the layout stays as it is."""
    operation = record.operation
    waiting = drains.undrained_by_anybody(tx, topic.topic_id, operation.parent_ids)
    ready = [i for i in operation.parent_ids if i not in waiting]
    if not ready:
        return None
    epoch = _next_epoch(tx, topic)
    at = layout_changes.write(tx, topic, operation, epoch)
    of_segments = {"topic_id": topic.topic_id, "segment_ids": ready}
    pruned = tx.execute(text(_PRUNE), of_segments | {"epoch": epoch, "at": at})
    logs = {row.segment_id: row.backing_topic for row in pruned}
    if len(logs) != len(ready):
        raise InvariantViolated(f"segments {ready} of topic {topic.name} are not all sealed and unpruned")
    gates.forget(tx, topic.topic_id, logs)
    _bury(tx, topic, operation, logs, "the segment was pruned")
    tx.execute(text(FORGET_LOADS), of_segments)
    topics.update_topic(tx, topic, epoch=epoch)
    return epoch


def _subscription_delete(tx: Connection, topic: TopicRow, record: StepRecord) -> None:
    """Raises the version once more: a reshape that copied cursors before they were gone looks again."""
    _end_deletion(tx, topic, record.operation, _FORGET_SUBSCRIPTION)


def _keep_subscription(tx: Connection, topic: TopicRow, operation: Operation) -> None:
    """Its cursors cannot be deleted: it is live again, unless its creation was given up."""
    is_undo = UNDOES in operation.parameters
    _end_deletion(tx, topic, operation, _FORGET_SUBSCRIPTION if is_undo else _KEEP_SUBSCRIPTION)


def _end_deletion(tx: Connection, topic: TopicRow, operation: Operation, statement: str) -> None:
    tx.execute(text(statement), {"topic_id": topic.topic_id, "name": operation.parameters[SUBSCRIPTION]})
    topics.update_topic(tx, topic, subscription_version=topic.subscription_version + 1)


def _seek(tx: Connection, _topic: TopicRow, record: StepRecord) -> None:
    """The step before it is recorded in the same transaction, so its detail is of cursors that were moved just now. Without it
    everything counts as unread.
    """
    found = record.detail
    seeks.commit(tx, record.operation, read=_ids(found.get("read")), missing=_ids(found.get("missing")))


def _ids(found: object) -> list[int]:
    return [int(one) for one in found] if isinstance(found, list) else []


_ACTS: Mapping[OperationKind, Callable[[Connection, TopicRow, StepRecord], int | None]] = {
    OperationKind.ADOPT: _adopt,
    OperationKind.CREATE: _create,
    OperationKind.DELETE: _delete,
    OperationKind.PRUNE: _prune,
    OperationKind.SEEK: _seek,
    OperationKind.SUBSCRIPTION_DELETE: _subscription_delete,
}
"""Each returns the epoch it made, or None."""


def _next_epoch(tx: Connection, topic: TopicRow) -> int:
    """The first epoch is 0; a topic deleted before it had a layout ends at 0 too."""
    if topic.epoch > 0:
        return topic.epoch + 1
    return topic.epoch + 1 if tx.execute(text(_HAS_HISTORY), {"topic_id": topic.topic_id}).scalar_one() else 0


def _demand_noted(topic: TopicRow, record: StepRecord) -> None:
    if record.noted_version != topic.subscription_version:
        raise _stale_subscriptions(topic.name, topic.subscription_version, record.noted_version)


def _stale_subscriptions(topic: str, present: int, noted: int | None) -> LostRace:
    return LostRace(
        f"subscriptions of topic {topic} are at version {present}, the children at {noted}; apply the difference first",
        delay_seconds=0.0,
        what="operation",
    )


def _bury(
    tx: Connection, topic: TopicRow, operation: Operation, logs: Mapping[int, str], reason: str
) -> None:
    tombstones.add(
        tx,
        data_plane=topic.data_plane,
        topic_id=topic.topic_id,
        backing_topics=logs,
        reason=reason,
        operation_id=operation.operation_id,
        discards_unread=operation.kind is OperationKind.DELETE,
        was_pruned=operation.kind is OperationKind.PRUNE,
    )
