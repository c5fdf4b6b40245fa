"""The demo's day as a trace that a backtest reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from controller.backtest.load_series import read_csv
from controller.demo.comparison import costs_table, write_trace
from controller.demo.load_profile import LoadProfile


def test_a_profile_is_spread_over_24_hours_with_its_steps(tmp_path: Path) -> None:
    profile = LoadProfile("four steps", (100.0, 900.0, 300.0, 300.0))

    mean = write_trace(profile, tmp_path / "day.csv")
    series = read_csv("day", [tmp_path / "day.csv"], capacity=1.0, mean_load=mean, days=1)

    assert mean == pytest.approx(400.0)
    assert series.days == 1
    assert [round(series.rates[minute, 0]) for minute in (0, 359, 360, 719, 720, 1_439)] == [
        100,
        100,
        900,
        900,
        300,
        300,
    ]


def test_the_table_says_what_each_rule_would_have_cost() -> None:
    console = Console(width=120)
    row = {
        "policy": "adaptive",
        "regret": 1.234,
        "segment_hours": 20.0,
        "overload_seconds": 192.0,
        "reshapes": 7.0,
    }
    with console.capture() as captured:
        console.print(costs_table([row]))
    text = captured.get()

    assert "adaptive" in text
    assert "1.23" in text
