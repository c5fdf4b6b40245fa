"""Commits and aborts operations, each in one transaction.

A commit locks the topic row first and the operation second, by its claim. Then it seals the parents, activates the children, raises
the epoch by one and writes the row of history, all or nothing. A commit does not ignore concurrent changes: if the subscriptions
are not those of the children, or an older operation of a topic that is being deleted is still live, nothing is written and the
runner reads the state again. Logs are not changed here; superfluous logs are queued in `deletion_entries`.

One statement commits any number of reshapes and never waits for a lock. A topic whose row (or evaluation row) another transaction
has locked is skipped, because the parents of the other reshapes are terminated and accept no writes until their commit.
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
from controller.store.decisions import candidates, evaluations
from controller.store.decisions.candidates import CandidateState
from controller.store.journal import adoptions, deletion_entries, seeks, steps, subscription_intents
from controller.store.journal.claim_check import GIVEN, HELD, fenced_out, held_parameters
from controller.store.journal.steps import FENCED_AT, JOURNAL, STEP_TYPES, StepRecord
from controller.store.load.load_deletion import forget_counts, forget_rates
from controller.store.mirrors import commits as mirror_commits
from controller.store.postgres.clock import database_now
from controller.store.postgres.prepared_statements import Prepared
from controller.store.topics import deletion, drains, gates, layout_changes, layouts, topics
from controller.store.topics.topics import TopicRow, TopicState

TOPIC_DELETED = "the topic was deleted"
"""Why logs are deleted and a candidate is withdrawn."""
ABORT_PAUSE_SECONDS = 30.0
"""Seconds after an abort in which no automatic decision is made about the topic."""
ROWS_HELD_SECONDS = 0.01
"""Seconds before locked rows are tried again. A transaction usually locks rows for milliseconds."""

# A data-modifying WITH uses one snapshot throughout. All writes depend on the row that passed the checks, and PostgreSQL checks a
# locked row again after a concurrent commit. The statement checks first that no parent is sealed, and the update checks it again.
# In addition, constraints of the database make ACTIVE ranges disjoint and make them tile the ring.
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
               fenced_at = {FENCED_AT.format(states="r.states")},
               committed_at = clock_timestamp()
          FROM raised r WHERE o.operation_id = r.operation_id
     RETURNING o.operation_id, o.topic_id, o.claim_term, o.kind, o.origin, o.actor, o.reason, o.epoch)
    , change AS (
        INSERT INTO cleave.layout_change (topic_id, epoch, kind, operation_id, origin, actor, reason)
        SELECT topic_id, epoch, kind, operation_id, origin, actor, reason FROM moved ORDER BY topic_id
     RETURNING topic_id, epoch, operation_id, committed_at)
    , sealed AS (
        UPDATE cleave.segment s
           SET state = 'SEALED', sealed_epoch = c.epoch, sealed_at = c.committed_at
          FROM change c JOIN cleave.operation_parent p USING (operation_id)
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
WHY_SKIPPED = Prepared(
    "why_skipped",
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
"""Columns of the cooldowns that an operation of a kind begins, at the time of its intent."""
_PRUNE = """
    UPDATE cleave.segment SET pruned_epoch = :epoch, pruned_at = :at
     WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids) AND state = 'SEALED' AND pruned_epoch IS NULL
 RETURNING segment_id, backing_topic
"""
_HAS_HISTORY = "SELECT EXISTS (SELECT FROM cleave.layout_change WHERE topic_id = :topic_id)"
_KEEP_SUBSCRIPTION = """
    UPDATE cleave.subscription SET state = 'live' WHERE topic_id = :topic_id AND name = :name AND state = 'deleting'
"""
_MAY_HAVE_DELETED = """
    SELECT EXISTS (SELECT FROM cleave.operation_step WHERE operation_id = :operation_id AND step = 'find-cursors')
"""
_MAY_HAVE_MOVED = """
    SELECT EXISTS (SELECT FROM cleave.operation_step WHERE operation_id = :operation_id AND step = 'stop-readers')
"""


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of a commit or of a finished abort. `epoch` is None if the operation made no epoch. `now_ms` is the time
    of the commit, or of the last step of the abort, by the clock of the database, in milliseconds since the Unix epoch.
    `subscriptions` holds the names of all subscriptions at the commit, including subscriptions being deleted; empty for
    a result of `commit_one` or `abort`.
    """

    epoch: int | None
    now_ms: int
    subscriptions: frozenset[str] = frozenset()


def commit_reshapes(
    tx: Connection, records: Sequence[StepRecord], runner: str, *, started_at_ms: int
) -> dict[int, Committed]:
    """Commit reshapes of layouts that Cleave keeps, in one statement that waits for no lock. Return the results by
    operation id, only of the committed operations.

    A commit seals the parents, inserts the children, raises the epoch, begins cooldowns, and writes the history and
    the steps. `records` has at most one operation per topic. `started_at_ms` (milliseconds since the Unix epoch) is
    the time at which the steps in `records` began.

    An operation is skipped, without an error, if its claim is lost or has expired, if its state has changed, if its
    topic is neither live nor deleting, if its recorded subscription version is stale, if a parent is not ACTIVE, or
    if another transaction has locked the row of the operation, of its topic or of the topic's evaluation.
    `why_skipped` returns the reasons. Raises InvariantViolated if a rule of a layout would be broken; then no
    operation is committed.
    """
    stamps = {record.operation.operation_id: _stamps(record.operation) for record in records}
    parameters = steps.statement_parameters(records, runner, started_at_ms, stamps) | {
        "topic_ids": [record.operation.topic_id for record in records]
    }
    return {
        row.operation_id: Committed(row.epoch, to_ms(row.now), frozenset(row.subscriptions))
        for row in COMMIT.execute(tx, parameters)
    }


def _stamps(operation: Operation) -> tuple[str, ...]:
    """Return the columns of the topic row that store the beginning of the cooldowns which the operation begins. A
    rebucket, and any operation that was decided for the number of consumers, also begins `last_consumer_act_at`.
    Empty if the operation begins no cooldown.
    """
    stamps = STAMPS.get(operation.kind, ())
    if is_for_consumers(operation.kind, operation.reason):
        return (*stamps, "last_consumer_act_at")
    return stamps


def why_skipped(tx: Connection, records: Sequence[StepRecord], runner: str) -> dict[int, CleaveError]:
    """Return, by operation id, the error for which `commit_reshapes` skipped each of these operations. The errors are
    returned, not raised: FencedOut if the claim is lost or has expired, the operation's state has changed, or the
    operation does not exist; InvariantViolated if the topic is neither live nor deleting, or a parent is not ACTIVE;
    LostRace if the recorded subscription version is stale; and otherwise HeldUp, because rows were locked.

    The rows are read again, so `records` must contain only skipped operations: a committed operation gets FencedOut.
    An operation whose rows are no longer locked gets HeldUp.
    """
    parameters = held_parameters([record.operation for record in records], runner)
    rows = {row.operation_id: row for row in WHY_SKIPPED.execute(tx, parameters)}
    return {
        record.operation.operation_id: _why_skipped(record, rows.get(record.operation.operation_id), runner)
        for record in records
    }


def _why_skipped(record: StepRecord, row: Row[Any] | None, runner: str) -> CleaveError:
    """Return the error for which `commit_reshapes` skipped the operation of `record`. `row` is the operation's row of
    `WHY_SKIPPED`; None if the operation does not exist.

    The error is FencedOut if the claim is lost or has expired, the operation's state has changed, or the operation
    does not exist; InvariantViolated if the topic is neither live nor deleting, or a parent is not ACTIVE; LostRace
    if the recorded subscription version is stale; and otherwise HeldUp, because rows were locked.
    """
    operation = record.operation
    if row is None or not row.is_held:  # the row is missing if a fail-over lost the intent
        return fenced_out(operation, runner)
    if row.topic_state not in (TopicState.LIVE, TopicState.DELETING):
        return InvariantViolated(
            f"topic {operation.topic_name} is {row.topic_state} under {operation.kind} {operation.operation_id}"
        )
    if not row.has_active_parents:
        return InvariantViolated(
            f"parents {operation.parent_ids} of operation {operation.operation_id} are not all active"
        )
    if record.noted_version != row.subscription_version:
        return _stale_subscriptions(operation.topic_name, row.subscription_version, record.noted_version)
    return HeldUp(
        f"another transaction has locked the rows of topic {operation.topic_name}; retry", ROWS_HELD_SECONDS
    )


def commit_one(tx: Connection, record: StepRecord, runner: str, *, started_at_ms: int) -> Committed:
    """Record the steps and commit one operation that is not a reshape of Cleave's own logs. Return the epoch and the
    time of the commit. The epoch is None for a seek, for a deleted subscription, and for a prune of which no segment
    is drained. Waits for the lock of the topic row.

    Raises FencedOut if the claim is lost or has expired, or the state of the operation has changed; LostRace if the
    runner has to read the state again; HeldUp if a deletion waits for another operation, or consumers own buckets at
    the commit of a seek; InvariantViolated if a rule of the layout would be broken; and TopicNotFound if the topic
    does not exist. For a mirrored topic, also raises InvalidInput for a layout that cannot be read, and Conflict for
    a layout that is older than the rows. After an error the caller rolls back, so that nothing is written.
    """
    operation = record.operation
    topic = topics.get_topic(tx, operation.topic_id, lock=True)
    # The claim is checked first, so that a stale runner always gets FencedOut.
    committed_at_ms = _record_steps(tx, record, runner, started_at_ms)
    if operation.is_mirrored:
        epoch: int | None = mirror_commits.apply(tx, topic, operation, record.detail)
    else:
        epoch = _COMMITS[operation.kind](tx, topic, record)
    if operation.kind in (OperationKind.DETACH, OperationKind.DELETE):
        # No command finds the candidate of a topic that is gone.
        for candidate in candidates.in_shadow(tx, [topic.topic_id]):
            candidates.end(
                tx,
                candidate.candidate_id,
                CandidateState.WITHDRAWN,
                ended_by=operation.actor,
                outcome=TOPIC_DELETED,
            )
    return Committed(epoch, committed_at_ms)


def abort(
    tx: Connection,
    record: StepRecord,
    runner: str,
    *,
    started_at_ms: int,
    pause_seconds: float = ABORT_PAUSE_SECONDS,
) -> Committed:
    """Record the steps that finish the abort of an operation, queue the logs of the operation's reserved children for
    deletion, and delete the gates of these children. Return the time of the record, with an epoch of None. Waits for
    the lock of the topic row.

    A topic still in state creating is deleted, and its name is free. If a deletion or detachment of a topic is
    aborted, the topic is live again, or deleted if it never had a layout: the deletion had ended its creation.

    If the deletion of a subscription is aborted, the subscription is live again. But if the deletion undoes an aborted
    creation, or may have deleted cursors, the row of the subscription is deleted. If the creation of a subscription is
    aborted, the deletion of the subscription is requested, or only its row is deleted (`undo_subscription`).

    After the abort of a seek, the leader is notified to assign the buckets again. If the seek had stopped its
    readers, the seek is committed with all segments unread. After any other operation, automatic decisions on the
    topic pause for `pause_seconds`.

    Raises FencedOut if the claim is lost or has expired, or the state of the operation has changed; HeldUp if
    consumers own buckets again at the commit of a seek; and TopicNotFound. After an error the caller rolls back.
    """
    operation = record.operation
    topic = topics.get_topic(tx, operation.topic_id, lock=True)
    recorded_at_ms = _record_steps(tx, record, runner, started_at_ms)
    logs = {child.plan.segment_id: child.backing_topic for child in operation.children}
    gates.forget(tx, topic.topic_id, logs)
    _queue_deletions(tx, topic, operation, logs, f"{operation.kind} was aborted")
    if topic.state is TopicState.CREATING:
        deletion.end_topic(tx, topic, topic.epoch, database_now(tx))
    elif operation.kind is OperationKind.SEEK:
        if tx.execute(text(_MAY_HAVE_MOVED), {"operation_id": operation.operation_id}).scalar_one():
            seeks.commit(tx, operation, read=(), missing=())
        drains.notify_leader(tx, topic.topic_id)  # the leader may assign the buckets again
    elif operation.kind in (OperationKind.DETACH, OperationKind.DELETE):
        _keep_topic(tx, topic)
    elif operation.kind is OperationKind.SUBSCRIPTION_CREATE:
        subscription_intents.undo_subscription(tx, topic, operation)
    elif operation.kind is OperationKind.SUBSCRIPTION_DELETE:
        _keep_subscription(tx, topic, operation)
    else:
        evaluations.defer(tx, [topic.topic_id], pause_seconds)
    return Committed(epoch=None, now_ms=recorded_at_ms)


def _record_steps(tx: Connection, record: StepRecord, runner: str, started_at_ms: int) -> int:
    """Record the steps of the operation, and set the operation to the state after the last step. Return the time of
    the change by the clock of the database, in milliseconds since the Unix epoch.

    A final state releases the claim. A final state or `committed` frees the parents for other operations.
    `started_at_ms` is the time at which the first step began, also since the Unix epoch. Raises FencedOut, and
    changes nothing, if the claim is lost or has expired, or if the state of the operation has changed.
    """
    recorded = steps.record(tx, [record], runner, started_at_ms=started_at_ms)
    if record.operation.operation_id not in recorded:
        raise fenced_out(record.operation, runner)
    return recorded[record.operation.operation_id]


def _create(tx: Connection, topic: TopicRow, record: StepRecord) -> int:
    """Write the first layout of a topic in state creating, make the topic live, and return the epoch. Raises LostRace
    if the topic is in another state, or if the subscriptions of the topic have changed since the segments got their
    cursors.
    """
    if topic.state is not TopicState.CREATING:
        raise LostRace(f"topic {topic.name} is {topic.state} by now; read it again", 0.0, what="operation")
    _demand_subscription_version(topic, record)
    operation, epoch = record.operation, _next_epoch(tx, topic)
    at = layout_changes.write(tx, topic, operation, epoch)
    segments = (
        Segment(c.plan.segment_id, c.plan.hash_range, bucket_splits=c.plan.bucket_splits)
        for c in operation.children
    )
    logs = {child.plan.segment_id: child.backing_topic for child in operation.children}
    layouts.insert_segments(tx, topic.topic_id, segments, logs, at)
    topics.update_topic(tx, topic, state=TopicState.LIVE.value, epoch=epoch)
    return epoch


def _adopt(tx: Connection, topic: TopicRow, record: StepRecord) -> int:
    """Write the two epochs of an adoption: the old topics, then the created segments. Return the second epoch. A
    topic in state creating becomes live; a topic in state deleting stays in this state. The old logs are terminated
    already.

    Raises InvariantViolated if the topic is in any other state, and LostRace if the subscriptions of the topic have
    changed since the children got their cursors.
    """
    if topic.state not in (TopicState.CREATING, TopicState.DELETING):
        raise InvariantViolated(f"topic {topic.name} is {topic.state} under its adoption")
    _demand_subscription_version(topic, record)
    layout_changes.write(tx, topic, record.operation, adoptions.FOUND_EPOCH)
    at = layout_changes.write(tx, topic, record.operation, adoptions.FIRST_EPOCH)
    adoptions.insert_generations(tx, topic, record.operation, at)
    state = TopicState.LIVE if topic.state is TopicState.CREATING else topic.state
    topics.update_topic(tx, topic, state=state.value, epoch=adoptions.FIRST_EPOCH)
    return adoptions.FIRST_EPOCH


def _delete(tx: Connection, topic: TopicRow, record: StepRecord) -> int:
    """Delete the topic: seal and prune its segments in a last epoch, queue their logs for deletion together with
    unread messages, delete the subscriptions, load and evaluation of the topic, and free the name. Return the epoch.
    Raises HeldUp while another operation of the topic is live.
    """
    epoch = _next_epoch(tx, topic)
    logs = deletion.end_in_epoch(tx, topic, record.operation, epoch)
    _queue_deletions(tx, topic, record.operation, logs, TOPIC_DELETED)
    return epoch


def _prune(tx: Connection, topic: TopicRow, record: StepRecord) -> int | None:
    """Prune the segments of the operation that all live subscriptions have drained: delete the gates and the load of
    the segments, queue their logs for deletion, raise the epoch, and return the new epoch.

    Segments that are not drained stay, for example because a seek since the intent has made them unread. If no
    segment is drained, nothing changes, and the result is None. Raises InvariantViolated if a drained segment is not
    SEALED or was pruned already.
    """
    operation = record.operation
    undrained = drains.undrained_subscriptions(tx, topic.topic_id, operation.parent_ids)
    drained_ids = [i for i in operation.parent_ids if i not in undrained]
    if not drained_ids:
        return None
    epoch = _next_epoch(tx, topic)
    forget_rates(tx, topic.topic_id, drained_ids)
    at = layout_changes.write(tx, topic, operation, epoch)
    parameters = {"topic_id": topic.topic_id, "segment_ids": drained_ids, "epoch": epoch, "at": at}
    pruned = tx.execute(text(_PRUNE), parameters)
    logs = {row.segment_id: row.backing_topic for row in pruned}
    if len(logs) != len(drained_ids):
        raise InvariantViolated(
            f"segments {drained_ids} of topic {topic.name} are not all sealed and unpruned"
        )
    gates.forget(tx, topic.topic_id, logs)
    _queue_deletions(tx, topic, operation, logs, "the segment was pruned")
    forget_counts(tx, topic.topic_id, drained_ids)
    topics.update_topic(tx, topic, epoch=epoch)
    return epoch


def _subscription_delete(tx: Connection, topic: TopicRow, record: StepRecord) -> None:
    """Delete the subscription's row and raise the subscription version again, so that a reshape that copied its cursors reads the state
    again.
    """
    _end_deletion(tx, topic, record.operation, subscription_intents.FORGET_SUBSCRIPTION)


def _keep_topic(tx: Connection, topic: TopicRow) -> None:
    """Make the topic live again, because it cannot be deleted or detached. A topic without a layout is deleted: the deletion
    waited until the topic's creation was aborted, so no operation would give it a layout.
    """
    if tx.execute(text(_HAS_HISTORY), {"topic_id": topic.topic_id}).scalar_one():
        topics.update_topic(tx, topic, state=TopicState.LIVE.value)
    else:
        deletion.end_topic(tx, topic, topic.epoch, database_now(tx))


def _keep_subscription(tx: Connection, topic: TopicRow, operation: Operation) -> None:
    """Make the subscription live again, because its cursors cannot be deleted. Delete it if its creation was aborted,
    and if some cursors may be deleted already: a live subscription without these cursors would miss messages.
    """
    is_gone = (
        UNDOES in operation.parameters
        or tx.execute(text(_MAY_HAVE_DELETED), {"operation_id": operation.operation_id}).scalar_one()
    )
    _end_deletion(
        tx, topic, operation, subscription_intents.FORGET_SUBSCRIPTION if is_gone else _KEEP_SUBSCRIPTION
    )


def _end_deletion(tx: Connection, topic: TopicRow, operation: Operation, statement: str) -> None:
    """Execute the statement on the row of the operation's subscription, and raise the topic's subscription version by 1. Raises LostRace if
    the topic row has changed.
    """
    tx.execute(text(statement), {"topic_id": topic.topic_id, "name": operation.parameters[SUBSCRIPTION]})
    topics.update_topic(tx, topic, subscription_version=topic.subscription_version + 1)


def _seek(tx: Connection, _topic: TopicRow, record: StepRecord) -> None:
    """Commit a seek with the detail of the step that moved the cursors, which the same transaction records. Without a detail, all
    segments count as unread.
    """
    detail = record.detail
    seeks.commit(tx, record.operation, read=_ids(detail.get("read")), missing=_ids(detail.get("missing")))


def _ids(value: object) -> list[int]:
    """Return the ids in a list of a step's detail; empty if the detail has no list."""
    return [int(segment_id) for segment_id in value] if isinstance(value, list) else []


_COMMITS: Mapping[OperationKind, Callable[[Connection, TopicRow, StepRecord], int | None]] = {
    OperationKind.ADOPT: _adopt,
    OperationKind.CREATE: _create,
    OperationKind.DELETE: _delete,
    OperationKind.PRUNE: _prune,
    OperationKind.SEEK: _seek,
    OperationKind.SUBSCRIPTION_DELETE: _subscription_delete,
}
"""Functions that commit an operation, by kind. Each returns the epoch that it made, or None."""


def _next_epoch(tx: Connection, topic: TopicRow) -> int:
    """Return the epoch that the next commit makes: 1 above the topic's epoch, or 0 for a topic that had no layout."""
    if topic.epoch > 0:
        return topic.epoch + 1
    return topic.epoch + 1 if tx.execute(text(_HAS_HISTORY), {"topic_id": topic.topic_id}).scalar_one() else 0


def _demand_subscription_version(topic: TopicRow, record: StepRecord) -> None:
    """Raise LostRace unless the subscription version that the record notes for the children is the topic's present version."""
    if record.noted_version != topic.subscription_version:
        raise _stale_subscriptions(topic.name, topic.subscription_version, record.noted_version)


def _stale_subscriptions(topic: str, present: int, noted: int | None) -> LostRace:
    return LostRace(
        f"subscriptions of topic {topic} are at version {present}, those of the children at {noted}; apply the difference first",
        delay_seconds=0.0,
        what="operation",
    )


def _queue_deletions(
    tx: Connection, topic: TopicRow, operation: Operation, logs: Mapping[int, str], reason: str
) -> None:
    """Queue the logs, by segment id, for deletion by the operation. Only the deletion of a topic discards unread
    messages; a prune stores which subscriptions had drained the segments.
    """
    deletion_entries.add(
        tx,
        data_plane=topic.data_plane,
        topic_id=topic.topic_id,
        backing_topics=logs,
        reason=reason,
        operation_id=operation.operation_id,
        discards_unread=operation.kind is OperationKind.DELETE,
        was_pruned=operation.kind is OperationKind.PRUNE,
    )
