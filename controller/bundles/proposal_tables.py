"""Rows and tables of proposals and refusals of the balancer, as `cleave bundles` and the tasks of the DAGs show them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from controller.clock import to_datetime
from controller.command_output import rows_table
from controller.domain.formatting import duration

if TYPE_CHECKING:
    from controller.bundles.services.balancer import ActReport
    from controller.bundles.store.proposals import ProposalRow

Rows = list[dict[str, Any]]

_PROPOSED = (
    "proposal_id",
    "kind",
    "bundle",
    "broker",
    "destination",
    "cut_points",
    "reason",
    "state",
    "mode",
)
_WHY_NOT = ("namespace", "bundle", "broker", "rule", "reason", "metric", "value", "needed")
_INSTANTS, _SPANS_MS = ("reported_at",), ("age_ms", "milliseconds")


def figure(metric: str | None, value: float | None) -> str | None:
    """Format a figure of `metric`: `age_ms` and `milliseconds` as a duration, `reported_at` (milliseconds since the Unix epoch) as a UTC
    time, other metrics with four significant digits, or from 10,000 on as a whole number with commas.

    Return None if `value` is None.
    """
    if value is None:
        return None
    if metric in _SPANS_MS:
        return duration(value / 1000)
    if metric in _INSTANTS:
        return to_datetime(int(value)).strftime("%Y-%m-%d %H:%M:%S")
    # From 9999.5 on, four significant digits would be written as 1e+04.
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"


def cycle_tables(cycle_id: int, proposals: Rows, why_not: Rows) -> RenderableType:
    """Return the tables of a cycle's proposals and refusals."""
    return Group(
        rows_table(proposals, _PROPOSED, title=f"cycle {cycle_id} proposes"),
        rows_table(
            [
                {
                    **row,
                    "value": figure(row["metric"], row["value"]),
                    "needed": figure(row["metric"], row["needed"]),
                }
                for row in why_not
            ],
            _WHY_NOT,
            title="refusals",
        ),
    )


def waiting_row(row: ProposalRow) -> dict[str, Any]:
    """Return the row of a proposal that `apply` may apply, or that `verify` may verify."""
    return {
        "proposal_id": row.proposal_id,
        "kind": row.kind.value,
        "bundle": str(row.bundle),
        "destination": row.destination,
        "reason": row.reason,
    }


def act_row(report: ActReport) -> dict[str, Any]:
    """Return the row of an applied or verified proposal."""
    return {**asdict(report), "kind": report.kind.value, "state": report.state.value}
