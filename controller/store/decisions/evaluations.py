"""Evaluations that are due: reads the topics to evaluate, and stores the results of their evaluations.

Triggers raise `input_version` in the table `evaluation` when an input changes. Passes of Airflow and workers process the rows here,
each with its own lanes, concurrently (SKIP LOCKED). A row that is being processed stays locked until the end of the transaction, so
its inputs cannot change during a decision. A trigger that raises a locked row waits, so one transaction processes a bounded batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    DateTime,
    MetaData,
    ScalarSelect,
    Table,
    Text,
    and_,
    cast,
    column,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from controller.clock import to_datetime
from controller.domain.decision import Lane
from controller.store.shards import Shards


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
    """A finished evaluation: the version of its inputs, and the time (milliseconds since the Unix epoch) until which it is valid."""

    topic_id: int
    input_version: int
    valid_until: int | None
    outcome_digest: str | None


_Instant = DateTime(timezone=True)
_EVALUATION = Table(
    "evaluation",
    MetaData(schema="cleave"),
    Column("topic_id", BigInteger, primary_key=True),
    Column("input_version", BigInteger),
    Column("not_before", _Instant),
    Column("outcome_digest", Text),
    *(Column(f"{lane}_version", BigInteger) for lane in Lane),
    *(Column(f"{lane}_due", _Instant) for lane in Lane),
)
_E = _EVALUATION.c
# statement_timestamp() is constant within a statement, so that an index can be searched by it; clock_timestamp() is not.
_NOW = func.statement_timestamp(type_=_Instant)
_NEVER = text("'infinity'::timestamptz")
_ALWAYS = text("'-infinity'::timestamptz")
_PENDING = select(_E.topic_id, _E.input_version, func.nullif(_E.not_before, _ALWAYS), _E.outcome_digest)


def lock_due(
    tx: Connection,
    *,
    lanes: Collection[Lane],
    limit: int,
    shards: Shards | None = None,
    topic_ids: Collection[int] | None = None,
    skip: Collection[int] = (),
) -> list[PendingEvaluation]:
    """Return up to `limit` topics that are due for one of the lanes, by a changed input or by time. Their rows are locked until the
    transaction ends.

    Locked rows, and topics paused by `not_before`, are skipped. `skip` lists further topics to skip, for example topics whose evaluation
    failed in this pass. `shards` and `topic_ids` limit the topics; None: all.
    """
    pending: dict[int, PendingEvaluation] = {}
    for lane in sorted(lanes):
        for condition, order in ((_dirty(lane), _E.topic_id), (_due(lane), _E[f"{lane}_due"])):
            if len(pending) < limit:
                statement = (
                    _PENDING.where(
                        condition, _E.not_before <= _NOW, *_scope(shards, topic_ids, (*skip, *pending))
                    )
                    .order_by(order)
                    .limit(limit - len(pending))
                    .with_for_update(skip_locked=True)
                )
                pending.update((row[0], PendingEvaluation(*row)) for row in tx.execute(statement))
    return list(pending.values())


def read(tx: Connection, topic_ids: Collection[int]) -> list[PendingEvaluation]:
    """Return the rows of these topics, due or not, in the order of their ids; a topic that is deleted or does not exist
    is absent. Locks nothing; serves evaluations whose actions are not performed.
    """
    statement = _PENDING.where(*_scope(None, topic_ids, ())).order_by(_E.topic_id)
    return [PendingEvaluation(*row) for row in tx.execute(statement)]


def finish(tx: Connection, lanes: Collection[Lane], finished: Sequence[FinishedEvaluation]) -> None:
    """Store the results of the evaluations of these lanes, in one statement, with the digest of the outcome. The lanes are due again at
    `valid_until`; None: only after an input changes.

    If an input version was raised since, it stays ahead of the evaluated version, so the topic is due again.
    """
    if not finished or not lanes:
        return
    due_times = [
        None if evaluation.valid_until is None else to_datetime(evaluation.valid_until)
        for evaluation in finished
    ]
    values = (
        func.unnest(
            cast([evaluation.topic_id for evaluation in finished], ARRAY(BigInteger)),
            cast([evaluation.input_version for evaluation in finished], ARRAY(BigInteger)),
            cast(due_times, ARRAY(_Instant)),
            cast([evaluation.outcome_digest for evaluation in finished], ARRAY(Text)),
        )
        .table_valued(
            column("topic_id", BigInteger),
            column("input_version", BigInteger),
            column("due", _Instant),
            column("outcome_digest", Text),
            name="given",
        )
        .render_derived()
    )
    columns: dict[str, ColumnElement[object]] = {"outcome_digest": values.c.outcome_digest}
    for lane in lanes:
        columns[f"{lane}_version"] = func.greatest(_E[f"{lane}_version"], values.c.input_version)
        columns[f"{lane}_due"] = func.coalesce(values.c.due, _NEVER)
    tx.execute(update(_EVALUATION).values(columns).where(_E.topic_id == values.c.topic_id))


def defer(tx: Connection, topic_ids: Collection[int], seconds: float) -> None:
    """Pause the evaluation of these topics, in all lanes, for `seconds` from now. A pause is never shortened."""
    if not topic_ids:
        return
    pause_end = _NOW + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    tx.execute(
        update(_EVALUATION)
        .values(not_before=func.greatest(_E.not_before, pause_end))
        .where(*_scope(None, topic_ids, ()))
    )


def next_due(tx: Connection, lanes: Collection[Lane], shards: Shards | None = None) -> datetime | None:
    """Return the earliest time at which `lock_due` returns a topic for these lanes; the present time or earlier if one is due.

    None if no topic becomes due without a changed input. A topic with a changed input is due at the end of its pause at the earliest. A
    topic that is due by time only, and whose pause ends after that time, is ignored until its pause has ended.
    """
    instants = [instant for lane in lanes for instant in _next_of_lane(lane, _scope(shards, None, ()))]
    if not instants:
        return None
    due: datetime | None = tx.execute(select(func.least(*instants))).scalar_one()
    return due


def _next_of_lane(lane: Lane, scope: Sequence[ColumnElement[bool]]) -> Iterator[ScalarSelect[datetime]]:
    """Yield subqueries that each read the first entry of an index: changed inputs, changed inputs of paused topics, and due times."""
    due = _E[f"{lane}_due"]
    # The order only changes the plan: without it the planner reads the table, because it expects to find a row early.
    open_now = select(_NOW).where(_dirty(lane), _E.not_before <= _NOW, *scope)
    yield open_now.order_by(_E.topic_id).limit(1).scalar_subquery()
    paused = select(_E.not_before).where(_dirty(lane), _E.not_before > _ALWAYS, _E.not_before > _NOW, *scope)
    yield paused.order_by(_E.not_before).limit(1).scalar_subquery()
    yield (
        select(func.greatest(due, _E.not_before))
        .where(due < _NEVER, _E.not_before <= func.greatest(due, _NOW), *scope)
        .order_by(due)
        .limit(1)
        .scalar_subquery()
    )


def _dirty(lane: Lane) -> ColumnElement[bool]:
    """Return the condition that an input has changed since the last evaluation of the lane."""
    return _E[f"{lane}_version"] < _E.input_version


def _due(lane: Lane) -> ColumnElement[bool]:
    """Return the condition that the lane's evaluation is no longer valid."""
    # The second condition implies the first, but the first lets the planner use the partial index.
    return and_(_E[f"{lane}_due"] < _NEVER, _E[f"{lane}_due"] <= _NOW)


def _scope(
    shards: Shards | None, topic_ids: Collection[int] | None, skip: Collection[int]
) -> list[ColumnElement[bool]]:
    """Return the conditions that limit the topics to the shards held and to `topic_ids` (None: no limit), without the
    topics in `skip`.
    """
    conditions: list[ColumnElement[bool]] = []
    if shards is not None:
        conditions.append((_E.topic_id % shards.count).in_(sorted(shards.held)))
    if topic_ids is not None:
        conditions.append(_E.topic_id == func.any(cast(sorted(topic_ids), ARRAY(BigInteger))))
    if skip:
        conditions.append(_E.topic_id != func.all(cast(list(skip), ARRAY(BigInteger))))
    return conditions
