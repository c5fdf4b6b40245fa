"""The demo's day as a trace that a backtest reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from controller.backtest.load_series import read_csv
from controller.demo.comparison import RuleCost, costs_table, write_trace
from controller.demo.story import DayRecord, Moment


def moment(share: float, rate: float) -> Moment:
    return Moment(share * 240, rate, {}, 1, 1, share)


def test_the_day_is_spread_over_24_hours_and_where_it_waited_the_last_moment_counts(tmp_path: Path) -> None:
    seen = DayRecord(
        moments=[moment(0.25, 100.0), moment(0.5, 900.0), moment(0.5, 300.0), moment(1.0, 300.0)]
    )

    mean = write_trace(seen, tmp_path / "day.csv")
    series = read_csv("day", [tmp_path / "day.csv"], capacity=1.0, mean_load=mean, days=1)

    assert mean == pytest.approx(100 * 0.25 + 200 * 0.25 + 300 * 0.5)
    assert series.days == 1
    assert [round(series.rates[step, 0]) for step in (0, 360, 540, 720, 1_439)] == [100, 100, 200, 300, 300]


def test_a_day_without_traffic_is_no_trace(tmp_path: Path) -> None:
    assert write_trace(DayRecord(), tmp_path / "day.csv") == 0
    assert not (tmp_path / "day.csv").exists()


def test_the_table_says_what_each_rule_would_have_cost() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(costs_table([RuleCost("adaptive", 1.234, 20.0, 3.2, 7)]))
    text = captured.get()

    assert "adaptive" in text
    assert "1.23" in text
