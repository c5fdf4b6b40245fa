"""Reads from the journal the waiting times and durations of operations of the last 15 minutes, and the load rows that were outrun.

Runners count these figures too, but a pass of Airflow ends before Prometheus can scrape it.
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
    """One value of a figure. `of` is `operation`, `wait` or `step`, whose `labels` hold the kind or step, if any, then the quantile, and
    whose value is in seconds; or `outrun`, a number without labels.
    """

    of: str
    labels: tuple[str, ...]
    value: float


def recent_figures(tx: Connection) -> list[RecentFigure]:
    """Return the quantiles `QUANTILES` of seconds, over the operations that finished in the last 15 minutes: of done operations by kind, of
    the wait before the first step of finished operations, and of their steps by step; and the number of load rows that were outrun by
    another writer.
    """
    [load] = inspection.rows(tx, _OUTRUN)
    return [
        *(figure for row in inspection.rows(tx, _TOOK) for figure in _spread("operation", (row["kind"],), row["seconds"])),
        *(figure for row in inspection.rows(tx, _WAITED) for figure in _spread("wait", (), row["seconds"])),
        *(figure for row in inspection.rows(tx, _STEPS) for figure in _spread("step", (row["step"],), row["seconds"])),
        RecentFigure("outrun", (), float(load["outrun"])),
    ]  # fmt: skip


def _spread(of: str, labels: tuple[str, ...], seconds: Sequence[float]) -> Iterator[RecentFigure]:
    """Yield one figure for each quantile of `QUANTILES`; `seconds` holds the values in this order."""
    for quantile, value in zip(QUANTILES, seconds, strict=True):
        yield RecentFigure(of, (*labels, quantile), float(value))
