"""File names: what they say, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import InvalidInput
from controller.landing.file_names import (
    LandedFile,
    compacted_path,
    day_directories,
    day_of,
    format_tick,
    parse_path,
    parse_tick,
    tick_path,
)

instants = st.integers(0, 4_000_000_000_000)


def test_a_tick_is_named_for_its_instant_and_its_collector() -> None:
    path = tick_path(1_800_014_400_007, "broker-a.1")

    assert path == "day=2027-01-15/20270115T120000007Z-broker-a.1.parquet"
    assert parse_path(path, 9) == LandedFile(path, 1_800_014_400_007, 1_800_014_400_007, False, 9)


def test_a_compacted_file_names_its_first_and_last_tick() -> None:
    path = compacted_path(1_800_014_400_000, 1_800_018_000_000, "0a1b2c3d")

    assert parse_path(path, 9) == LandedFile(path, 1_800_014_400_000, 1_800_018_000_000, True, 9)


@given(instants, instants)
def test_ticks_read_back_and_sort_by_time(one: int, other: int) -> None:
    assert parse_tick(format_tick(one)) == one
    assert (format_tick(one) < format_tick(other)) == (one < other)


@pytest.mark.parametrize(
    "name",
    [
        "x.parquet",
        "20270115T120000007Z.parquet",
        "20271315T120000007Z-a.parquet",
        "20270115T120000007Z-a.csv",
        "20270115T120000007Z_20270115T120000008Z-compacted-xyz.parquet",
    ],
)
def test_other_names_are_none_of_ours(name: str) -> None:
    assert parse_path(f"day=2027-01-15/{name}", 1) is None


@pytest.mark.parametrize("collector", ["", "a/b", "-a", "..", "a b", "x" * 101])
def test_a_collector_that_cannot_stand_in_a_name_is_refused(collector: str) -> None:
    with pytest.raises(InvalidInput, match="collector name"):
        tick_path(0, collector)


@given(instants, st.integers(0, 400_000_000))
def test_the_days_of_a_span_hold_every_instant_in_it(start: int, length: int) -> None:
    days = day_directories(start, start + length)

    assert days == sorted(set(days))
    assert all(day_of(day) is not None for day in days)
    for instant in (start, start + length // 2, start + length):
        assert tick_path(instant, "c").split("/")[0] in days


@pytest.mark.parametrize(
    "directory", ["day=2026-02-30", "day=2026-99-99", "day=2026-1-1", "night=2026-01-01", ""]
)
def test_a_directory_that_names_no_day_is_not_cleaves(directory: str) -> None:
    assert day_of(directory) is None
