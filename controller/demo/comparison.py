"""Cost of each rule on the demo's day: `cleave backtest` over the load profile, interpreted as 24 hours.

The trace contains the profile that the producers follow. The rates that the demo measures are not suitable: a second
of the demo is 6 minutes of the day, so messages that a busy machine sends a second late look like an overload of
minutes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import RenderableType

from controller.command_output import rows_table
from controller.demo.load_profile import LoadProfile
from controller.demo.stack import Stack
from controller.devstack.process import run_checked

RULES = ("adaptive", "pip483")
MINUTES = 1_440
_MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


def write_trace(profile: LoadProfile, path: Path) -> float:
    """Write the profile as `timestamp,value` lines, one for each minute of 24 hours. Return the mean rate in messages
    per second.
    """
    rates = [profile.rate_at(minute / MINUTES) for minute in range(MINUTES + 1)]
    lines = (
        f"{_MIDNIGHT + timedelta(minutes=minute):%Y-%m-%d %H:%M:%S},{rate:.3f}\n"
        for minute, rate in enumerate(rates)
    )
    path.write_text("timestamp,value\n" + "".join(lines), encoding="utf-8")
    return fmean(rates[:MINUTES])


def compare(
    stack: Stack, profile: LoadProfile, policy: Mapping[str, int | float | str], directory: Path
) -> list[dict[str, Any]]:
    """Run `cleave backtest` on the profile, and return its summary: a row with the cost of the profile for each of RULES. Writes the trace to
    `day.csv` in `directory`. Raises DevstackFailed if the backtest fails.
    """
    trace = directory / "day.csv"
    mean_load = write_trace(profile, trace) / float(policy["split_msg_rate_in"])
    policies = [part for rule in RULES for part in ("--policy", rule)]
    answer = run_checked(
        [sys.executable, "-m", "controller.commands.cli", "backtest", "--trace", trace, "--days", "1",
         "--mean-load", f"{mean_load:.6f}", "--engine", "here", "--json", *policies],
        cwd=stack.directory,
        env=stack.env,
    )  # fmt: skip
    summary: list[dict[str, Any]] = json.loads(answer[answer.index("{") :])["summary"]
    return summary


def costs_table(summary: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return the rows of `compare` as a table for the terminal."""
    rows = [
        {
            "rule": row["policy"],
            "cost ÷ best possible": f"{row['regret']:.2f}",
            "segment-hours": f"{row['segment_hours']:.1f}",
            "overload, minutes": f"{row['overload_seconds'] / 60:.0f}",
            "reshapes": round(row["reshapes"]),
        }
        for row in summary
    ]
    return rows_table(rows, title="The load profile, taken as 24 hours, under each rule (cleave backtest)")
