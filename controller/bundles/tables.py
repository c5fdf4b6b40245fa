"""Rows and tables that `cleave bundles` and the tasks of the DAGs show: brokers, and the balancer's proposals and refusals."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from controller.clock import to_datetime
from controller.command_output import rows_table
from controller.domain.formatting import duration

if TYPE_CHECKING:
    from controller.bundles.services.balancer import ActReport
    from controller.bundles.store.proposals import ProposalRow


_COLUMNS = (
    "broker",
    "active",
    "usage",
    "above_mean",
    "busiest_signal",
    "bundle_count",
    "topic_count",
    "msg_rate",
    "byte_rate",
    "read",
)


def broker_table(
    rows: Sequence[Mapping[str, Any]], active: Collection[str] | None
) -> tuple[list[dict[str, Any]], RenderableType]:
    """Return the rows and the table of brokers: `rows` as last read, then by name the active brokers that are not in `rows`. Each row has
    two more columns: `active`, and `read`, the time since the last report as a text. A broker that is not in `rows` has only these two and
    its name, with `read` "never".

    `rows` have `broker` and `silent_seconds`. `active`: names of the active brokers; None if no broker answered, so that column `active` is
    None in each row.
    """
    reported = {row["broker"] for row in rows}
    everyone = [*rows, *({"broker": name} for name in sorted(set(active or ()) - reported))]
    shown = [
        {
            **row,
            "active": None if active is None else row["broker"] in active,
            "read": f"{duration(float(row['silent_seconds']))} ago" if "silent_seconds" in row else "never",
        }
        for row in everyone
    ]
    return shown, rows_table(shown, _COLUMNS)


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
