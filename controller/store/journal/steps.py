"""Steps: reads the state on which a runner chooses the next step, and records steps.

One statement records steps of any number of operations. For each operation the statement checks the runner, the term
and an unexpired claim (`claim_check.HELD`), the state in which the runner saw the operation, that no abort was requested while it
is still possible, and, for the step to fencing, that the deadline has not passed and the topic is not being deleted.
An operation that fails a check is not changed. Two steps of one operation are recorded together if the second needs
no data-plane call; each has its row in the journal. `domain/operation_steps.py` defines the order of steps. Operation
rows are locked after topic rows, never before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, Row

from controller.clock import to_datetime, to_ms
from controller.domain.next_step import Observed
from controller.domain.operation import Operation, OperationKind, OperationState
from controller.domain.operation_steps import Step
from controller.store.journal.claim_check import GIVEN, HELD
from controller.store.postgres.prepared_statements import Prepared
from controller.store.topics.topics import TopicState

FORGETTABLE = frozenset({OperationState.PREPARED, OperationState.FENCED, OperationState.DONE})
"""States whose record need not wait for the disk, except `prepared` of the kinds in `PREPARED_ON_DISK`.

A server that crashes shortly afterwards loses such a record, and the runner performs the step again. The step is idempotent, and
its later effects in this database are lost with the record, because PostgreSQL loses changes only from the end of its log. After
`prepared` and `fenced` comes a state that waits for the disk. The set must not contain `fencing`, which must be stored before a log is
terminated; `committed`, which is reported to users; or `aborting` and `aborted`, after which logs are deleted. Claims wait for the
disk too, because a lost term would be used twice. Within one worker, the list of operations in progress keeps threads apart.
"""

PREPARED_ON_DISK = frozenset(
    {OperationKind.SEEK, OperationKind.SUBSCRIPTION_CREATE, OperationKind.SUBSCRIPTION_DELETE}
)
"""Kinds whose record of `prepared` waits for the disk, because the next step changes cursors. Without the record, a
seek could be cancelled after cursors have moved. A repeated search for cursors would take those that a creation has
made for an application's, and a deletion could be given up after a cursor is gone.
"""

LEADER_LATE_SECONDS = 5
"""Seconds after the time for releases of a seek. A leader that has not removed the owners by then counts as unavailable."""
OBSERVED_COLUMNS = f"""clock_timestamp() AS now, o.intended_at, t.subscription_version AS topic_subscription_version, t.state AS topic_state,
           t.epoch AS topic_epoch, o.abort_reason, (SELECT count(*) FROM cleave.operation e WHERE e.topic_id = t.topic_id
               AND e.operation_id < o.operation_id AND e.finished_at IS NULL
               AND (o.kind <> 'seek' OR e.parameters ->> 'subscription' = o.parameters ->> 'subscription')) AS older,
           CASE WHEN o.kind = 'seek' THEN (
               SELECT count(*) FROM cleave.bucket_owner b
                WHERE b.topic_id = o.topic_id AND b.subscription = o.parameters ->> 'subscription'
                  AND clock_timestamp() < o.intended_at + make_interval(secs =>
                      {LEADER_LATE_SECONDS} + CAST(o.parameters ->> 'release_seconds' AS float8))) ELSE 0 END AS readers,
           ARRAY(SELECT u.name FROM cleave.subscription u
                  WHERE u.topic_id = o.topic_id AND u.state = 'live' ORDER BY u.name) AS live_subscriptions,
           ARRAY(SELECT u.name FROM cleave.subscription u
                  WHERE u.topic_id = o.topic_id AND u.state <> 'live' ORDER BY u.name) AS ending_subscriptions,
           ARRAY(SELECT u.name FROM cleave.subscription u
                  WHERE u.topic_id = o.topic_id AND u.consumers = 'stock' AND u.state = 'live' ORDER BY u.name) AS stock_subscriptions"""
"""Columns of the operation `o` and its topic `t` that `observed_of` reads."""

# `FENCED_AT` and `JOURNAL` are parts of the statements that record steps and commit reshapes.
# The termination of the parents can begin at `fenced_at` at the earliest, so the range accepts writes until then. Later
# attempts keep the time of the first.
FENCED_AT = """coalesce(o.fenced_at, CASE WHEN 'fenced' = ANY ({states}) THEN CAST(:started_at AS timestamptz)
                                                WHEN 'fencing' = ANY ({states}) THEN clock_timestamp() END)"""
# The first step began at the time that the runner gives. A second step in the same transaction began when the first ended.
JOURNAL = """
        INSERT INTO cleave.operation_step (operation_id, sequence, step, runner, claim_term, started_at, detail)
        SELECT m.operation_id,
               n.ordinal + (SELECT coalesce(max(sequence), 0) FROM cleave.operation_step j
                             WHERE j.operation_id = m.operation_id),
               n.step, :runner, m.claim_term,
               CASE WHEN n.ordinal = 1 THEN CAST(:started_at AS timestamptz) ELSE clock_timestamp() END,
               CASE WHEN n.ordinal = 1 THEN g.detail ELSE '{}' END
          FROM moved m JOIN given g USING (operation_id)
         CROSS JOIN LATERAL unnest(g.steps) WITH ORDINALITY AS n (step, ordinal)
"""
ABORT_REASON = """(SELECT a.detail ->> 'reason' FROM cleave.operation_step a
                  WHERE a.operation_id = o.operation_id AND a.step = 'abort' ORDER BY a.sequence DESC LIMIT 1)"""
"""Reason for which operation `o` is aborted. A later failure has replaced the reason in the row."""
STEP_TYPES = {"given": "text", "runner": "text", "started_at": "timestamptz"}

RECORD = Prepared(
    "record_steps",
    f"""{GIVEN}
    , moved AS (
        UPDATE cleave.operation o
           SET state = g.states[cardinality(g.states)], row_version = o.row_version + 1, attempts = 0,
               last_error = CASE WHEN 'aborting' = ANY (g.states) THEN g.detail ->> 'reason'
                                 WHEN 'aborted' = ANY (g.states) THEN {ABORT_REASON} END,
               subscription_version = coalesce(g.subscription_version, o.subscription_version),
               fenced_at = {FENCED_AT.format(states="g.states")},
               committed_at = CASE WHEN 'committed' = ANY (g.states) THEN clock_timestamp() ELSE o.committed_at END,
               finished_at = CASE WHEN g.states && :final_states THEN clock_timestamp() END,
               claimed_by = CASE WHEN NOT g.states && :final_states THEN o.claimed_by END,
               claim_expires_at = CASE WHEN NOT g.states && :final_states THEN o.claim_expires_at END
          FROM given g
         WHERE o.operation_id = ANY (:operation_ids) AND o.operation_id = g.operation_id AND {HELD}
           AND o.state = g.seen_state
           AND (o.abort_reason IS NULL OR g.states[1] = 'aborting' OR g.seen_state <> 'intended')
           AND (NOT 'fencing' = ANY (g.states)
                OR o.deadline > clock_timestamp()
                   AND (SELECT t.state FROM cleave.topic t WHERE t.topic_id = g.topic_id) IN ('creating', 'live'))
     RETURNING o.operation_id, o.topic_id, o.claim_term, o.state)
    , journal AS ({JOURNAL})
    , freed AS (
        UPDATE cleave.operation_parent p SET live = false FROM moved m
         WHERE p.operation_id = m.operation_id AND p.live AND m.state = ANY (:freeing_states))
    SELECT operation_id, clock_timestamp() AS now,
           CASE WHEN NOT :waits_for_disk THEN set_config('synchronous_commit', 'off', true) END
      FROM moved
""",
    STEP_TYPES
    | {
        "operation_ids": "bigint[]",
        "final_states": "text[]",
        "freeing_states": "text[]",
        "waits_for_disk": "boolean",
    },
)
_OBSERVE = Prepared(
    "observe_operations",
    f"""
    SELECT o.operation_id, {OBSERVED_COLUMNS}
      FROM cleave.operation o JOIN cleave.topic t USING (topic_id) WHERE o.operation_id = ANY (:operation_ids)
""",
    {"operation_ids": "bigint[]"},
)
_FINAL = [state.value for state in OperationState if not state.is_live]
_FREEING = [*_FINAL, OperationState.COMMITTED.value]
"""States in which an operation no longer holds its parents: they are sealed, or they are free again."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Record of one operation in one transaction: one step, or two steps of which the second needs no data-plane call.

    `operation` is the operation as the runner saw it. `detail` is stored with the first step. `subscription_version` is the version of
    the subscriptions that the children have; None keeps the recorded version.
    """

    operation: Operation
    moves: tuple[tuple[Step, OperationState], ...]
    detail: Mapping[str, object] = field(default_factory=dict)
    subscription_version: int | None = None

    @property
    def leads_to(self) -> OperationState:
        """State of the operation after the last step."""
        return self.moves[-1][1]

    @property
    def noted_version(self) -> int | None:
        """Version of the subscriptions that the children have after the steps: `subscription_version`, or the
        recorded version. None if neither exists.
        """
        version = self.subscription_version
        return self.operation.subscription_version if version is None else version

    def moved(self) -> Operation:
        """Return a copy of the operation as it is after the steps: with the state after the last step, no attempts, and the subscription
        version. The copy keeps `last_error`, which the steps clear or replace in the row, and `epoch`, which a commit sets. All else is
        exact, because only the runner of the term writes the row.
        """
        return replace(
            self.operation, state=self.leads_to, attempts=0, subscription_version=self.noted_version
        )


def record(
    tx: Connection,
    records: Sequence[StepRecord],
    runner: str,
    *,
    started_at_ms: int,
    waits_for_disk: bool = True,
) -> dict[int, int]:
    """Record the steps of these operations. Return the times of the changes, in milliseconds since the Unix epoch, by id of the changed
    operations.

    An operation is absent, and not changed, if it fails a check: its claim is lost, its state has changed, an abort was requested in state
    intended (unless the step begins the abort), or, for the step to fencing, its deadline has passed or its topic is being deleted. A
    final state releases the claim; a final state or `committed` releases the parents. With `waits_for_disk` False, a crash of the server
    may lose the whole transaction (see `FORGETTABLE`). `started_at_ms` is the time at which the runner began the first step.
    """
    parameters = statement_parameters(records, runner, started_at_ms) | {
        "operation_ids": [step_record.operation.operation_id for step_record in records],
        "final_states": _FINAL,
        "freeing_states": _FREEING,
        "waits_for_disk": waits_for_disk,
    }
    return {row.operation_id: to_ms(row.now) for row in RECORD.execute(tx, parameters)}


def observe(tx: Connection, operations: Sequence[Operation]) -> dict[int, Observed]:
    """Return, by operation id, the state on which the next steps are chosen.

    An operation without a row is absent. Takes no lock; times are of the database's clock.
    """
    rows = _OBSERVE.execute(tx, {"operation_ids": [operation.operation_id for operation in operations]})
    return {row.operation_id: observed_of(row) for row in rows}


def observed_of(row: Row[Any]) -> Observed:
    """Return the observed state of a row with `OBSERVED_COLUMNS`.

    `other_live_operations` counts only older operations of the topic (for a seek, of its subscription), so that two operations never wait
    for each other. `is_refused` is False; the runner sets it. The deletion of a topic requests the abort of all its operations that can
    still be aborted.
    """
    return Observed(
        now_ms=to_ms(row.now),
        subscription_version=row.topic_subscription_version,
        age_ms=to_ms(row.now) - to_ms(row.intended_at),
        topic_epoch=row.topic_epoch,
        other_live_operations=row.older,
        readers=row.readers,
        abort_requested=row.topic_state not in (TopicState.CREATING, TopicState.LIVE)
        or row.abort_reason is not None,
        abort_reason=row.abort_reason or "",
        live_subscriptions=tuple(row.live_subscriptions),
        ending_subscriptions=tuple(row.ending_subscriptions),
        stock_subscriptions=tuple(row.stock_subscriptions),
    )


def statement_parameters(
    records: Sequence[StepRecord],
    runner: str,
    started_at_ms: int,
    stamps: Mapping[int, Sequence[str]] | None = None,
) -> dict[str, object]:
    """Return the parameters of the SQL texts `GIVEN`, `HELD` and `JOURNAL`: the records as JSON, the runner, and the time at which the
    first steps began. `stamps` are the cooldown columns of a commit, by operation id.
    """
    documents = [
        {
            "operation_id": record.operation.operation_id,
            "topic_id": record.operation.topic_id,
            "term": record.operation.claim_term,
            "seen_state": record.operation.state.value,
            "states": [state.value for _, state in record.moves],
            "steps": [step.value for step, _ in record.moves],
            "subscription_version": record.subscription_version,
            "detail": dict(record.detail),
            "stamps": list((stamps or {}).get(record.operation.operation_id, ())),
        }
        for record in records
    ]
    return {"given": json.dumps(documents), "runner": runner, "started_at": to_datetime(started_at_ms)}
