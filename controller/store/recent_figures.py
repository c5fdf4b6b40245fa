"""How long operations of the last quarter of an hour waited and took, and what the aggregation lost to others, out of the journal.

Whoever ran them has counted that too, but a pass of Airflow ends before anybody could ask it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from controller.store.postgres import inspection

QUANTILES = ("0.5", "0.95", "1")
_ENDED = """
    SELECT operation_id, kind, state, intended_at, finished_at FROM inspect.operations
     WHERE finished_at > clock_timestamp() - interval '15 minutes'
"""
_SPREAD = "percentile_cont(ARRAY[0.5, 0.95, 1]) WITHIN GROUP (ORDER BY {})"
_TOOK = f"""
    SELECT kind, {_SPREAD.format("extract(epoch FROM finished_at - intended_at)")} AS seconds
      FROM ({_ENDED}) o WHERE state = 'done' GROUP BY kind ORDER BY kind
"""  # noqa: S608 - constants only
_WAITED = f"""
    SELECT {_SPREAD.format("extract(epoch FROM s.started_at - o.intended_at)")} AS seconds
      FROM ({_ENDED}) o JOIN inspect.operation_steps s ON s.operation_id = o.operation_id AND s.sequence = 1
    HAVING count(*) > 0
"""  # noqa: S608 - constants only
_STEPS = f"""
    SELECT s.step, {_SPREAD.format("extract(epoch FROM s.finished_at - s.started_at)")} AS seconds
      FROM ({_ENDED}) o JOIN inspect.operation_steps s USING (operation_id) GROUP BY s.step ORDER BY s.step
"""  # noqa: S608 - constants only
_OUTRUN = """
    SELECT coalesce(sum(outrun), 0) AS outrun FROM inspect.load_runs
     WHERE applied_at > clock_timestamp() - interval '15 minutes'
"""


@dataclass(frozen=True, slots=True)
class RecentFigure:
    """One value. `of`: `operation`, `wait`, `step` or `outrun`; `labels`: the kind or step if there is one, then the quantile."""

    of: str
    labels: tuple[str, ...]
    value: float


def recent_figures(tx: Connection) -> list[RecentFigure]:
    """Seconds of operations that are done, by kind; until the first step of any that ended; of their steps, by step; and how many
    rows of load somebody else had written meanwhile.
    """
    [load] = inspection.rows(tx, _OUTRUN)
    return [
        *(one for row in inspection.rows(tx, _TOOK) for one in _spread("operation", (row["kind"],), row["seconds"])),
        *(one for row in inspection.rows(tx, _WAITED) for one in _spread("wait", (), row["seconds"])),
        *(one for row in inspection.rows(tx, _STEPS) for one in _spread("step", (row["step"],), row["seconds"])),
        RecentFigure("outrun", (), float(load["outrun"])),
    ]  # fmt: skip


def _spread(of: str, labels: tuple[str, ...], seconds: Sequence[float]) -> Iterator[RecentFigure]:
    for quantile, value in zip(QUANTILES, seconds, strict=True):
        yield RecentFigure(of, (*labels, quantile), float(value))
