"""A load over time: what can be one, and how it is read from recorded traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.backtest.load_series import LoadSeries, of_messages, read_csv
from controller.domain.errors import InvalidInput


def trace(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["timestamp,value", *lines]) + "\n")
    return path


def test_readings_are_joined_by_straight_lines_and_scaled_to_the_mean(tmp_path: Path) -> None:
    file = trace(tmp_path / "a.csv", *(f"2024-01-01 {hour:02}:00:00,{hour % 2}" for hour in range(24)))

    series = read_csv("a", [file], days=1, mean_load=2.0, capacity=100.0, step_seconds=1800)

    assert (series.start_ms, series.step_seconds, series.steps) == (1_704_067_200_000, 1800, 48)
    assert series.rates[:, 0].mean() == pytest.approx(200.0)
    assert (series.rates[1:46:2, 0] / series.rates[2, 0]).tolist() == pytest.approx([0.5] * 23)
    assert not series.rates[:, 1:].any()


def test_of_several_files_the_sum_counts_from_where_all_have_begun(tmp_path: Path) -> None:
    early = trace(tmp_path / "a.csv", *(f"2024-01-0{day} 00:00:00,3" for day in (1, 2, 3, 4)))
    late = trace(
        tmp_path / "b.csv", "2024-01-02 00:00:00,0", "2024-01-03 00:00:00,6", "2024-01-04 00:00:00,0"
    )

    series = read_csv("both", [early, late], days=2, mean_load=1.0, capacity=6.0, step_seconds=43_200)

    assert series.start_ms == 1_704_153_600_000
    assert series.rates[:, 0].tolist() == pytest.approx([3, 6, 9, 6])


def test_a_timestamp_with_an_offset_is_converted(tmp_path: Path) -> None:
    file = trace(tmp_path / "a.csv", "2024-01-01T02:00:00+02:00,1", "2024-01-02 00:00:00,1")

    assert read_csv("a", [file], days=1).start_ms == 1_704_067_200_000


@pytest.mark.parametrize(
    ("lines", "asked", "message"),
    [
        (
            ("2024-01-01 00:00:00,1", "2024-01-02 00:00:00,1"),
            {"days": 1, "step_seconds": 0},
            "step of a = 0 s; give at least 1",
        ),
        (("2024-01-01 00:00:00,1", "2024-01-01 00:05:00,1"), {"days": 1}, "a ends before day 1"),
        (("2024-01-01 00:00:00,0", "2024-01-02 00:00:00,0"), {"days": 1}, "contains no load"),
        (("2024-01-01 00:00:00,1",), {}, r"one\.csv has 1 reading"),
    ],
    ids=["steps without length", "days that are not covered", "no load", "one reading"],
)
def test_a_trace_that_yields_no_series_is_refused(
    tmp_path: Path, lines: tuple[str, ...], asked: dict[str, int], message: str
) -> None:
    file = trace(tmp_path / "one.csv", *lines)

    with pytest.raises(InvalidInput, match=message):
        read_csv("a", [file], **asked)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2024-01-01 01:00:00", r"bad\.csv: line 3.*''"),
        ("2024-01-01 01:00:00,x", r"bad\.csv: line 3.*'x'"),
        ("2024-01-01 01:00:00,inf", r"bad\.csv: line 3.*inf is not a finite number"),
        ("2024-01-01 01:00:00,nan", r"bad\.csv: line 3.*nan is not a finite number"),
        ("yesterday,1", r"bad\.csv: line 3.*'yesterday'"),
        ("2024-01-01 01:00:00,\udcff", r"bad\.csv: .*utf-8"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    lines = ("timestamp,value", "2024-01-01 00:00:00,1", line)
    path.write_text("\n".join(lines), errors="surrogateescape")

    with pytest.raises(InvalidInput, match=message):
        read_csv("a", [path])


def test_without_a_column_a_file_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("timestamp,rate\n2024-01-01 00:00:00,1\n")

    with pytest.raises(
        InvalidInput, match=r"bad\.csv: line 2.*give a file whose first line is `timestamp,value`"
    ):
        read_csv("a", [path])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rates": np.zeros((0, 4))}, "one row of 4"),
        ({"rates": np.zeros((2, 3))}, "one row of 4"),
        ({"rates": np.full((2, 4), -1.0)}, "negative or infinite"),
        ({"rates": np.full((2, 4), np.inf)}, "negative or infinite"),
        ({"step_seconds": 0}, "give at least 1"),
        ({"shares": np.ones((3, 1))}, "one row, or one per step"),
        ({"shares": np.full((1, 3), 1 / 3)}, "a number that divides 65536"),
        ({"shares": np.array([[0.5, 0.4]])}, "add up to 1"),
        ({"shares": np.array([[1.5, -0.5]])}, "add up to 1"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        LoadSeries(**({"name": "odd", "start_ms": 0, "rates": np.zeros((2, 4))} | values))


def test_a_load_is_the_largest_of_its_rates_as_part_of_their_thresholds() -> None:
    series = LoadSeries("mixed", 0, np.array([[5.0, 10.0, 0, 0], [1.0, 100.0, 0, 0], [np.nan] * 4]))

    assert series.load([10.0, 100.0, 1.0, 1.0]).tolist() == [0.5, 1.0, 0.0]
    assert series.measured.tolist() == [True, True, False]


def test_the_days_of_a_series() -> None:
    assert of_messages("day", [1.0] * 1440).days == 1
