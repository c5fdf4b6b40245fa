"""Evaluations that are due: reads the topics to evaluate, and stores the results of their evaluations.

Triggers raise `input_version` in the table `evaluation` when an input changes. Passes of Airflow and workers process the rows here,
each with its own lanes, concurrently (SKIP LOCKED). A row that is being processed stays locked until the end of the transaction, so
its inputs cannot change during a decision. A trigger that raises a locked row waits, so one transaction processes a bounded batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from controller.clock import to_datetime
from controller.domain.decision import Lane
from controller.store.postgres.prepared_statements import Prepared
from controller.store.shards import Shards, filter_of


@dataclass(frozen=True, slots=True)
class PendingEvaluation:
    """A topic to evaluate. `not_before`: the end of its pause, which may have passed; None if the topic never was
    paused. `outcome_digest` is the digest that `finish` stored last; None if nothing was refused.
    """

    topic_id: int
    input_version: int
    not_before: datetime | None
    outcome_digest: str | None


@dataclass(frozen=True, slots=True)
class FinishedEvaluation:
    """A finished evaluation: the version of its inputs, the time (milliseconds since the Unix epoch) until which it is valid, and the
    digest of its refusals, None if nothing was refused.
    """

    topic_id: int
    input_version: int
    valid_until: int | None
    outcome_digest: str | None


# statement_timestamp() is constant within a statement, so that an index can be searched by it; clock_timestamp() is not.
_PENDING = (
    "SELECT topic_id, input_version, nullif(not_before, '-infinity'), outcome_digest FROM cleave.evaluation"
)
_DIRTY = {lane: f"{lane}_version < input_version" for lane in Lane}
# The second condition implies the first, but the first lets the planner use the partial index.
_DUE = {lane: f"{lane}_due < 'infinity' AND {lane}_due <= statement_timestamp()" for lane in Lane}
_IN_SHARDS = "(:shards IS NULL OR topic_id % :shard_count = ANY (:shards))"
_SHARD_TYPES = {"shards": "bigint[]", "shard_count": "bigint"}
_LANE_TYPES = {str(lane): "boolean" for lane in Lane}


def _lock(name: str, condition: str, order: str, types: Mapping[str, str]) -> Prepared:
    """Return the statement that locks the rows with this condition that are neither paused nor locked. `types` are the types of the
    condition's own parameters.
    """
    return Prepared(
        name,
        f"""
        {_PENDING}
         WHERE {condition} AND not_before <= statement_timestamp() AND {_IN_SHARDS} AND topic_id <> ALL (:skip)
         ORDER BY {order} LIMIT :limit FOR UPDATE SKIP LOCKED
        """,
        {**types, **_SHARD_TYPES, "skip": "bigint[]", "limit": "bigint"},
    )


_LOCK_DIRTY = {lane: _lock(f"lock_dirty_{lane}", _DIRTY[lane], "topic_id", {}) for lane in Lane}
_LOCK_DUE = {lane: _lock(f"lock_due_{lane}", _DUE[lane], f"{lane}_due", {}) for lane in Lane}
_OF_LANES = " OR ".join(f":{lane} AND ({_DIRTY[lane]} OR {_DUE[lane]})" for lane in Lane)
_LOCK_NAMED = _lock(
    "lock_named_evaluations",
    f"topic_id = ANY (:topic_ids) AND ({_OF_LANES})",
    "topic_id",
    {"topic_ids": "bigint[]", **_LANE_TYPES},
)
_FINISH_LANE = """
           {lane}_version = CASE WHEN :{lane} THEN greatest(e.{lane}_version, given.input_version) ELSE e.{lane}_version END,
           {lane}_due = CASE WHEN :{lane} THEN coalesce(given.due, 'infinity') ELSE e.{lane}_due END
"""
_FINISH = Prepared(
    "finish_evaluations",
    """
    UPDATE cleave.evaluation e
       SET outcome_digest = given.outcome_digest, {lanes}
      FROM unnest(:topic_ids, :input_versions, :due, :digests) AS given (topic_id, input_version, due, outcome_digest)
     WHERE e.topic_id = given.topic_id
    """.replace("{lanes}", ", ".join(_FINISH_LANE.format(lane=lane) for lane in Lane)),
    {
        "topic_ids": "bigint[]",
        "input_versions": "bigint[]",
        "due": "timestamptz[]",
        "digests": "text[]",
        **_LANE_TYPES,
    },
)
# Each subquery reads the first entry of an index: changed inputs, ends of pauses of topics that are due by then, and due times. The
# order only changes the plan: without it the planner reads the table, because it expects to find a row early.
_NEXT_OF_LANE = """
    CASE WHEN :{lane} THEN least(
        (SELECT statement_timestamp() FROM cleave.evaluation
          WHERE {dirty} AND not_before <= statement_timestamp() AND {in_shards} ORDER BY topic_id LIMIT 1),
        (SELECT not_before FROM cleave.evaluation
          WHERE ({dirty} OR {lane}_due <= not_before)
            AND not_before > '-infinity' AND not_before > statement_timestamp() AND {in_shards}
          ORDER BY not_before LIMIT 1),
        (SELECT greatest({lane}_due, not_before) FROM cleave.evaluation
          WHERE {lane}_due < 'infinity' AND not_before <= greatest({lane}_due, statement_timestamp()) AND {in_shards}
          ORDER BY {lane}_due LIMIT 1)) END
"""
_NEXT_OF_LANES = [_NEXT_OF_LANE.format(lane=lane, dirty=_DIRTY[lane], in_shards=_IN_SHARDS) for lane in Lane]
_NEXT_DUE = Prepared(
    "next_due_evaluation", f"SELECT least({', '.join(_NEXT_OF_LANES)})", {**_SHARD_TYPES, **_LANE_TYPES}
)


def lock_due(
    tx: Connection,
    *,
    lanes: Collection[Lane],
    limit: int,
    shards: Shards | None = None,
    topic_ids: Collection[int] | None = None,
    skip: Collection[int] = (),
) -> list[PendingEvaluation]:
    """Lock the rows of up to `limit` topics that are due for at least one of the lanes, because an input changed or
    the due time has come, and return the topics. The rows stay locked until the transaction ends. Empty if no topic
    is due.

    Rows that another transaction has locked are skipped without waiting, and so are topics that `defer` has paused.
    `skip` contains further topic ids to skip, for example topics whose evaluation failed in this pass. `shards` and
    `topic_ids` each restrict the topics; None does not.

    Each topic occurs once. With `topic_ids`, the topics are in the order of their ids. Without `topic_ids`, the
    topics are sorted by the name of the lane, and for each lane first come the topics with a changed input, by id,
    then the topics that are due by time, earliest first.
    """
    parameters: dict[str, object] = {**filter_of(shards), "skip": list(skip), "limit": limit}
    if topic_ids is not None:
        parameters |= {"topic_ids": sorted(topic_ids), **_of_lanes(lanes)}
        return [PendingEvaluation(*row) for row in _LOCK_NAMED.execute(tx, parameters)]
    pending: dict[int, PendingEvaluation] = {}
    for statement in (statements[lane] for lane in sorted(lanes) for statements in (_LOCK_DIRTY, _LOCK_DUE)):
        if len(pending) < limit:
            parameters |= {"skip": [*skip, *pending], "limit": limit - len(pending)}
            pending.update((row[0], PendingEvaluation(*row)) for row in statement.execute(tx, parameters))
    return list(pending.values())


def read(tx: Connection, topic_ids: Collection[int]) -> list[PendingEvaluation]:
    """Return the rows of these topics, due or not, in the order of their ids; a topic that is deleted or does not exist
    is absent. Locks nothing; serves evaluations whose actions are not performed.
    """
    statement = text(f"{_PENDING} WHERE topic_id = ANY (:topic_ids) ORDER BY topic_id")
    return [PendingEvaluation(*row) for row in tx.execute(statement, {"topic_ids": list(topic_ids)})]


def finish(tx: Connection, lanes: Collection[Lane], finished: Sequence[FinishedEvaluation]) -> None:
    """Store the finished evaluations for these lanes: the evaluated input version, the time of the next evaluation
    and the digest of the refusals. Each topic is due again in these lanes at `valid_until`; None: only after an input
    changes. Other lanes keep their versions and times.

    If an input has changed since the evaluation began, the topic is due at once. Does nothing without lanes, and for
    a topic without a row.
    """
    if not finished or not lanes:
        return
    _FINISH.execute(
        tx,
        {
            "topic_ids": [evaluation.topic_id for evaluation in finished],
            "input_versions": [evaluation.input_version for evaluation in finished],
            "due": [
                None if evaluation.valid_until is None else to_datetime(evaluation.valid_until)
                for evaluation in finished
            ],
            "digests": [evaluation.outcome_digest for evaluation in finished],
            **_of_lanes(lanes),
        },
    )


def defer(tx: Connection, topic_ids: Collection[int], seconds: float) -> None:
    """Pause the evaluation of these topics, in all lanes, for `seconds` from now. A pause is never shortened."""
    if not topic_ids:
        return
    tx.execute(
        text("""
            UPDATE cleave.evaluation SET not_before = greatest(not_before, statement_timestamp() + make_interval(secs => :seconds))
             WHERE topic_id = ANY (:topic_ids)
        """),
        {"topic_ids": list(topic_ids), "seconds": seconds},
    )


def next_due(tx: Connection, lanes: Collection[Lane], shards: Shards | None = None) -> datetime | None:
    """Return the earliest time at which `lock_due` returns a topic for these lanes; the present time or earlier if one is due.

    None if no topic becomes due without a changed input. A paused topic, with a changed input or due by time, is due at the end of its
    pause at the earliest.
    """
    due: datetime | None = _NEXT_DUE.execute(tx, {**filter_of(shards), **_of_lanes(lanes)}).scalar_one()
    return due


def _of_lanes(lanes: Collection[Lane]) -> dict[str, object]:
    """Return the parameters that say for each lane whether it is among the lanes."""
    return {lane: lane in lanes for lane in Lane}
