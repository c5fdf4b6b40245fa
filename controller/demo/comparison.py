"""What other rules would have cost on the demo's day: `cleave backtest` over the load that was sent, taken as 24 hours.

The day is written down as a trace, a line a moment, by its share of the day. Where it waited for something, the last moment
counts. The demo runs the command as an operator would, and shows what it says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from rich.table import Table

from controller.demo.stack import Stack
from controller.demo.story import DayRecord
from controller.devstack.process import run_checked

RULES = ("adaptive", "pip483")
_MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RuleCost:
    """What a rule would have cost; `regret` is its cost over that of the best there can be."""

    rule: str
    regret: float
    segment_hours: float
    overload_minutes: float
    reshapes: int


def write_trace(seen: DayRecord, path: Path) -> float:
    """The day as `timestamp,value` lines, messages a second over 24 hours; returns the mean, which is 0 for an empty day."""
    rates: dict[int, float] = {}
    for moment in seen.moments:
        if 0 <= moment.share <= 1:
            rates[round(moment.share * 1_440)] = moment.messages_per_second
    if not rates:
        return 0.0
    first, last = rates[min(rates)], rates[max(rates)]
    whole = {0: first} | rates | {1_440: last}
    lines = (
        f"{_MIDNIGHT + timedelta(minutes=minute):%Y-%m-%d %H:%M:%S},{rate:.3f}\n"
        for minute, rate in sorted(whole.items())
    )
    path.write_text("timestamp,value\n" + "".join(lines), encoding="utf-8")
    minutes = sorted(whole)
    area = sum((whole[a] + whole[b]) / 2 * (b - a) for a, b in pairwise(minutes))
    return area / 1_440


def compare(stack: Stack, seen: DayRecord, directory: Path) -> list[RuleCost]:
    """The day under each rule; empty where nothing was sent. Raises DevstackFailed."""
    trace = directory / "day.csv"
    mean = write_trace(seen, trace)
    if mean <= 0:
        return []
    mean_load = mean / float(seen.policy["split_msg_rate_in"])
    policies = [part for rule in RULES for part in ("--policy", rule)]
    answer = run_checked(
        [sys.executable, "-m", "controller.entrypoints.cli", "backtest", "--trace", trace, "--days", "1",
         "--mean-load", f"{mean_load:.6f}", "--engine", "here", "--json", *policies],
        cwd=stack.directory,
        env=stack.env,
    )  # fmt: skip
    return [
        RuleCost(
            row["policy"],
            row["regret"],
            row["segment_hours"],
            row["overload_seconds"] / 60,
            round(row["reshapes"]),
        )
        for row in json.loads(answer[answer.index("{") :])["summary"]
    ]


def costs_table(costs: Sequence[RuleCost]) -> Table:
    """For the terminal."""
    table = Table(title="the same day, taken as 24 hours, under each rule (cleave backtest)")
    for column in ("rule", "cost ÷ best possible", "segment-hours", "overload, minutes", "reshapes"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for one in costs:
        table.add_row(
            one.rule,
            f"{one.regret:.2f}",
            f"{one.segment_hours:.1f}",
            f"{one.overload_minutes:.0f}",
            str(one.reshapes),
        )
    return table
