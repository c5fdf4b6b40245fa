"""Work to do: which topics have to be evaluated, and what the last evaluation answered.

The table `evaluation` is raised by triggers (whatever could change an answer bumps `input_version`) and drained here:
by Airflow's passes and by the worker, each with its lanes, side by side (SKIP LOCKED). A drained row stays locked until
its transaction ends, so its inputs cannot change under a decision. A trigger that raises it meanwhile waits, so a drain
takes a batch and never a fleet.
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
    """A topic to look at; `outcome_digest` is what `finish` stored last (None: nothing was refused)."""

    topic_id: int
    input_version: int
    not_before: datetime | None
    outcome_digest: str | None


@dataclass(frozen=True, slots=True)
class FinishedEvaluation:
    """An evaluation made: on which version, and until when (milliseconds since the Unix epoch) it holds."""

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
# Not clock_timestamp(): only an instant that is stable within the statement can be looked up in an index.
_NOW = func.statement_timestamp(type_=_Instant)
_NEVER = text("'infinity'::timestamptz")
_ALWAYS = text("'-infinity'::timestamptz")
_PENDING = select(_E.topic_id, _E.input_version, func.nullif(_E.not_before, _ALWAYS), _E.outcome_digest)


def drain(
    tx: Connection,
    *,
    lanes: Collection[Lane],
    limit: int,
    shards: Shards | None = None,
    topic_ids: Collection[int] | None = None,
    skip: Collection[int] = (),
) -> list[PendingEvaluation]:
    """Up to `limit` topics that are dirty or due for one of the lanes, locked until the transaction ends.

    Rows that somebody else holds are left out, and so are topics paused by `not_before`. `skip` names topics to leave
    out, for instance those that this pass has given up on.
    """
    found: dict[int, PendingEvaluation] = {}
    for lane in sorted(lanes):
        for condition, order in ((_dirty(lane), _E.topic_id), (_due(lane), _E[f"{lane}_due"])):
            if len(found) < limit:
                statement = (
                    _PENDING.where(
                        condition, _E.not_before <= _NOW, *_scope(shards, topic_ids, (*skip, *found))
                    )
                    .order_by(order)
                    .limit(limit - len(found))
                    .with_for_update(skip_locked=True)
                )
                found.update((row[0], PendingEvaluation(*row)) for row in tx.execute(statement))
    return list(found.values())


def read(tx: Connection, topic_ids: Collection[int]) -> list[PendingEvaluation]:
    """The rows of these topics, dirty or not, without a lock: for asking what would happen."""
    statement = _PENDING.where(*_scope(None, topic_ids, ())).order_by(_E.topic_id)
    return [PendingEvaluation(*row) for row in tx.execute(statement)]


def finish(tx: Connection, lanes: Collection[Lane], finished: Sequence[FinishedEvaluation]) -> None:
    """Writes down, in one statement, what was evaluated in these lanes.

    A version that was raised since stays ahead, so the topic is dirty again and nothing is lost.
    """
    if not finished or not lanes:
        return
    dues = [None if one.valid_until is None else to_datetime(one.valid_until) for one in finished]
    given = (
        func.unnest(
            cast([one.topic_id for one in finished], ARRAY(BigInteger)),
            cast([one.input_version for one in finished], ARRAY(BigInteger)),
            cast(dues, ARRAY(_Instant)),
            cast([one.outcome_digest for one in finished], ARRAY(Text)),
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
    written: dict[str, ColumnElement[object]] = {"outcome_digest": given.c.outcome_digest}
    for lane in lanes:
        written[f"{lane}_version"] = func.greatest(_E[f"{lane}_version"], given.c.input_version)
        written[f"{lane}_due"] = func.coalesce(given.c.due, _NEVER)
    tx.execute(update(_EVALUATION).values(written).where(_E.topic_id == given.c.topic_id))


def defer(tx: Connection, topic_ids: Collection[int], seconds: float) -> None:
    """These topics are not evaluated for that long, whatever changes. A pause is never shortened."""
    if not topic_ids:
        return
    pause_end = _NOW + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    tx.execute(
        update(_EVALUATION)
        .values(not_before=func.greatest(_E.not_before, pause_end))
        .where(*_scope(None, topic_ids, ()))
    )


def next_due(tx: Connection, lanes: Collection[Lane], shards: Shards | None = None) -> datetime | None:
    """The earliest instant at which `drain` has something for these lanes; now or earlier if it already has.

    None: only a new input makes work. A paused topic counts from the end of its pause.
    """
    instants = [instant for lane in lanes for instant in _next_of_lane(lane, _scope(shards, None, ()))]
    if not instants:
        return None
    found: datetime | None = tx.execute(select(func.least(*instants))).scalar_one()
    return found


def _next_of_lane(lane: Lane, scope: Sequence[ColumnElement[bool]]) -> Iterator[ScalarSelect[datetime]]:
    """Subqueries that each read an index from its near end: dirty, dirty but paused, due."""
    due = _E[f"{lane}_due"]
    # The order only changes the plan: without it the planner reads the table, since it expects to find rows early.
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
    return _E[f"{lane}_version"] < _E.input_version


def _due(lane: Lane) -> ColumnElement[bool]:
    # The first condition follows from the second, but with it the planner can take the partial index.
    return and_(_E[f"{lane}_due"] < _NEVER, _E[f"{lane}_due"] <= _NOW)


def _scope(
    shards: Shards | None, topic_ids: Collection[int] | None, skip: Collection[int]
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if shards is not None:
        conditions.append((_E.topic_id % shards.count).in_(sorted(shards.held)))
    if topic_ids is not None:
        conditions.append(_E.topic_id == func.any(cast(sorted(topic_ids), ARRAY(BigInteger))))
    if skip:
        conditions.append(_E.topic_id != func.all(cast(list(skip), ARRAY(BigInteger))))
    return conditions
