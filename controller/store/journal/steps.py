"""Steps: what a runner sees before it chooses one, and how those that it did are recorded.

One statement records them for any number of operations. Each row demands what a single one would: the runner, the
term and an unexpired claim (`HELD`), the state the operation was seen in, that nobody wants it given up where that is
still possible, and for the announcement of a fence a deadline to come and a topic that nobody deletes. A row that does
not pass stays as it is. Two steps of one operation share the record where the second needs no act of its own; each has
its row in the journal. The order of steps is in `domain/operation.py`. Operation rows are locked after topic rows,
never before them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, Row

from controller.clock import to_datetime, to_ms
from controller.domain.errors import FencedOut
from controller.domain.operation import Observed, Operation, OperationState, Step
from controller.store.postgres.prepared import Prepared
from controller.store.topics.topics import TopicState

FORGETTABLE = frozenset({OperationState.PREPARED, OperationState.FENCED, OperationState.DONE})
"""States whose record need not wait for the disk.

A server that crashes within the next moments forgets the last of them, and the runner does the step once more: the
act is idempotent, and what it led to in this database is forgotten with it, because a log of changes is lost from
its end only. Each is followed by one that does wait. Not here, ever: `fencing`, which has to be known before a log is
closed; `committed`, which people are told; `aborting` and `aborted`, after which logs are deleted. Claims wait too:
a term that is forgotten would be given out twice. The threads of one worker are kept apart by what each has in hand.
"""

LEADER_LATE_SECONDS = 5
"""A leader that has not ended the owners of a seek by so long after their time is not there."""
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
"""Of operation `o` and its topic `t`; see `observed_of`."""

# Parts that the record and the commit of reshapes are both made of. States are parameters where one row is sought by
# its key: of a state that it knows the planner may think that so few rows have it that it had better read all of
# them.
GIVEN = """
    WITH given AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS g (
            operation_id bigint, topic_id bigint, term bigint, seen_state text, states text[], steps text[],
            subscription_version bigint, detail jsonb, stamps text[]))
"""
HELD = "o.claimed_by = :runner AND o.claim_term = g.term AND o.claim_expires_at > clock_timestamp()"
# `fenced_at` is when the parents began to be closed: by then at the earliest the range takes no writes.
# The first step began when the runner says; another one that the same transaction records began where the first ended.
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
"""Why operation `o` is given up; a failure since then has replaced it in the row."""
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
               fenced_at = CASE WHEN 'fenced' = ANY (g.states) THEN CAST(:started_at AS timestamptz) ELSE o.fenced_at END,
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
_STILL_HELD = Prepared(
    "held_operations",
    f"""{GIVEN}
    SELECT o.operation_id FROM cleave.operation o JOIN given g USING (operation_id)
     WHERE o.operation_id = ANY (:operation_ids) AND {HELD} AND o.state = g.seen_state
""",
    {"given": "text", "runner": "text", "operation_ids": "bigint[]"},
)
_FINAL = [state.value for state in OperationState if not state.is_live]
_FREEING = [*_FINAL, OperationState.COMMITTED.value]
"""In these states an operation holds its parents no longer: they are sealed, or they are as they were."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one transaction records of one operation: a step, or two of which the second needs no act.

    `operation` is as it was seen. `detail` goes to the first step's row. `subscription_version`: which subscriptions
    the children have now; None leaves what is noted.
    """

    operation: Operation
    moves: tuple[tuple[Step, OperationState], ...]
    detail: Mapping[str, object] = field(default_factory=dict)
    subscription_version: int | None = None

    @property
    def leads_to(self) -> OperationState:
        """The state after the last of them."""
        return self.moves[-1][1]

    @property
    def noted_version(self) -> int | None:
        """The version of the subscriptions that the children have."""
        given = self.subscription_version
        return self.operation.subscription_version if given is None else given

    def moved(self) -> Operation:
        """The operation afterwards. Only whoever holds the term writes its row, and the rest of it is for life."""
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
    """Moves the operations on; when (milliseconds since the Unix epoch), by id of those that moved.

    A final state gives claim and parents back. `waits_for_disk` False: the record may be forgotten in a crash of the
    server, see `FORGETTABLE`. `started_at_ms`: when the runner began the first step.
    """
    parameters = statement_parameters(records, runner, started_at_ms) | {
        "operation_ids": [one.operation.operation_id for one in records],
        "final_states": _FINAL,
        "freeing_states": _FREEING,
        "waits_for_disk": waits_for_disk,
    }
    return {row.operation_id: to_ms(row.now) for row in RECORD.execute(tx, parameters)}


def observe(tx: Connection, operations: Sequence[Operation]) -> dict[int, Observed]:
    """What the next steps are chosen on, by the database's clock and under no lock."""
    rows = _OBSERVE.execute(tx, {"operation_ids": [one.operation_id for one in operations]})
    return {row.operation_id: observed_of(row) for row in rows}


def still_held(tx: Connection, operations: Sequence[Operation], runner: str) -> set[int]:
    """Ids of those that are the runner's still, in the state in which it saw them."""
    return {row.operation_id for row in _STILL_HELD.execute(tx, held_parameters(operations, runner))}


def observed_of(row: Row[Any]) -> Observed:
    """From a row with `OBSERVED_COLUMNS`.

    `other_live_operations` counts the topic's older ones only, for a seek those of its subscription, so that no two wait for each
    other. A topic being deleted asks every operation on it to abort that still can.
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
    """The values of `GIVEN`, `HELD` and `JOURNAL`; `stamps` by operation id are the commit's."""
    documents = [
        {
            "operation_id": one.operation.operation_id,
            "topic_id": one.operation.topic_id,
            "term": one.operation.claim_term,
            "seen_state": one.operation.state.value,
            "states": [state.value for _, state in one.moves],
            "steps": [step.value for step, _ in one.moves],
            "subscription_version": one.subscription_version,
            "detail": dict(one.detail),
            "stamps": list((stamps or {}).get(one.operation.operation_id, ())),
        }
        for one in records
    ]
    return {"given": json.dumps(documents), "runner": runner, "started_at": to_datetime(started_at_ms)}


def held_parameters(operations: Sequence[Operation], runner: str) -> dict[str, object]:
    """The values of `GIVEN` and `HELD` where nothing is recorded."""
    documents = [
        {"operation_id": one.operation_id, "term": one.claim_term, "seen_state": one.state.value}
        for one in operations
    ]
    ids = [one.operation_id for one in operations]
    return {"given": json.dumps(documents), "runner": runner, "operation_ids": ids}


def fenced_out(operation: Operation, runner: str) -> FencedOut:
    """What a runner is told whose claim has passed."""
    return FencedOut(
        f"operation {operation.operation_id} is no longer {runner}'s in state {operation.state} "
        f"(claim term {operation.claim_term}); leave it to whoever holds it now"
    )
