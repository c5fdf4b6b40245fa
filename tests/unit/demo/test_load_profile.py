"""The demo's traffic: a day with a burst, and traces squeezed into it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.demo.load_profile import (
    BURST_MESSAGES_PER_SECOND,
    FIRST_HOUR,
    PEAK_STEPS,
    SPIKE_MESSAGES_PER_SECOND,
    STEPS,
    TRACE_PEAK_MESSAGES_PER_SECOND,
    LoadProfile,
    _resample,
    from_trace,
    synthetic_day,
)
from controller.domain.errors import InvalidInput


def trace(directory: Path, values: Sequence[object], header: str = "time,load") -> Path:
    """A CSV file whose second column is the load."""
    path = directory / "trace.csv"
    path.write_text("\n".join([header, *(f"{n},{value}" for n, value in enumerate(values))]) + "\n")
    return path


def busiest(profile: LoadProfile) -> float:
    """The highest mean of a stretch as long as the demo's window."""
    rates = profile.rates
    return max(mean(rates[first : first + PEAK_STEPS]) for first in range(len(rates) - PEAK_STEPS + 1))


def test_the_day_rises_to_a_peak_at_noon_bursts_in_the_afternoon_and_ends_at_night() -> None:
    def rate_at_hour(hour: float) -> float:
        return synthetic_day().rate_at((hour - FIRST_HOUR) / 24)

    assert len(synthetic_day().rates) == STEPS
    assert rate_at_hour(5) < rate_at_hour(7) < rate_at_hour(9) < rate_at_hour(11.9)
    assert rate_at_hour(11.9) > rate_at_hour(13) > rate_at_hour(16.5) > rate_at_hour(20) > rate_at_hour(23)
    assert max(synthetic_day().rates) == rate_at_hour(14) == BURST_MESSAGES_PER_SECOND
    assert 0 < rate_at_hour(28) < BURST_MESSAGES_PER_SECOND / 20


def test_a_day_is_the_same_each_time() -> None:
    assert synthetic_day() == synthetic_day()


@pytest.mark.parametrize(
    ("share", "rate"), [(0.0, 1.0), (0.24, 1.0), (0.25, 2.0), (0.99, 4.0), (1.0, 4.0), (7.0, 4.0)]
)
def test_a_rate_is_that_of_the_step_in_progress(share: float, rate: float) -> None:
    assert LoadProfile("four steps", (1.0, 2.0, 3.0, 4.0)).rate_at(share) == rate


def test_a_scaled_day_has_the_same_shape_and_name() -> None:
    day = synthetic_day()
    assert day.scaled(1.0) == day
    assert day.scaled(0.25) == LoadProfile(day.name, tuple(rate / 4 for rate in day.rates))


@pytest.mark.parametrize("length", [2, 3, 100, STEPS, STEPS * 2, STEPS * 3 + 7])
def test_a_trace_keeps_its_shape_at_the_demos_scale(tmp_path: Path, length: int) -> None:
    profile = from_trace(trace(tmp_path, [10 + n for n in range(length)]))
    assert len(profile.rates) == STEPS
    assert busiest(profile) == pytest.approx(TRACE_PEAK_MESSAGES_PER_SECOND)
    assert list(profile.rates) == sorted(profile.rates)
    assert profile.name.startswith("trace.csv, samples ")


def test_of_a_long_trace_the_stretch_around_its_peak_is_taken(tmp_path: Path) -> None:
    values = [10.0] * 5_000
    values[4_000:4_020] = [900.0] * 20
    profile = from_trace(trace(tmp_path, values))
    top = profile.rates.index(max(profile.rates))
    assert STEPS / 4 < top < STEPS / 2, "before the middle, so that shrinking is seen as well"
    assert profile.rates[0] == profile.rates[-1] == pytest.approx(TRACE_PEAK_MESSAGES_PER_SECOND * 10 / 900)


@pytest.mark.parametrize("peak_at", [0, 999], ids=["at its begin", "at its end"])
def test_a_peak_at_an_edge_of_the_trace_is_kept(tmp_path: Path, peak_at: int) -> None:
    values = [10.0] * 1_000
    values[peak_at] = values[peak_at - 1 if peak_at else 1] = 500.0
    profile = from_trace(trace(tmp_path, values))
    assert profile.rates[0 if peak_at == 0 else -1] == max(profile.rates)


def test_a_spike_of_a_moment_is_cut_to_what_one_machine_bears(tmp_path: Path) -> None:
    values = [10.0] * 480
    values[100:102] = [10_000.0] * 2
    profile = from_trace(trace(tmp_path, values))
    assert max(profile.rates) == SPIKE_MESSAGES_PER_SECOND


def test_a_trace_never_falls_silent(tmp_path: Path) -> None:
    profile = from_trace(trace(tmp_path, [0] * 50 + [1_000_000] + [0] * 50))
    assert min(profile.rates) > 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "at least two"),
        ([5], "at least two"),
        ([1, "nan"], "at least two finite"),
        ([1, "inf"], "at least two finite"),
        ([1, -2], "not negative"),
        ([1, "much"], "could not convert"),
        ([0, 0, 0], "no load above 0"),
    ],
)
def test_a_trace_that_is_none_is_refused_by_name(tmp_path: Path, values: list[object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        from_trace(trace(tmp_path, values))
    assert "trace.csv" in str(refused.value)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.csv"):
        from_trace(tmp_path / "absent.csv")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"header\n\xff\xfe\x00\n")
    with pytest.raises(InvalidInput, match=r"binary\.csv"):
        from_trace(binary)


def test_a_bare_column_of_numbers_will_do(tmp_path: Path) -> None:
    path = tmp_path / "bare.csv"
    path.write_text("load\n1\n\n3\n")
    assert max(from_trace(path).rates) == TRACE_PEAK_MESSAGES_PER_SECOND


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=2_000), steps=st.integers(1, 300))
def test_averaging_stays_within_the_values_and_keeps_the_mean_of_whole_steps(
    values: list[float], steps: int
) -> None:
    averaged = _resample(values, steps)
    assert len(averaged) == steps
    assert min(values) - 1e-6 <= min(averaged) <= max(averaged) <= max(values) + 1e-6
    if len(values) % steps == 0:
        assert mean(averaged) == pytest.approx(mean(values), abs=1e-6)
