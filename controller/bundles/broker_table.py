"""Rows and table of brokers that `cleave bundles brokers` shows: the brokers as last read, and the active brokers that never reported."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from controller.command_output import rows_table
from controller.domain.formatting import duration

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
