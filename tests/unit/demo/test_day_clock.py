"""The demo's clock: it goes by the seconds, and waits at a gate until what belongs there was seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from controller.demo.day_clock import DayClock, Gate, read_share
from controller.demo.load_profile import LoadProfile, from_trace, synthetic_day


class Seconds:
    """Time as the test has it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    """It stands still."""
    return Seconds()


@pytest.fixture
def clock(tmp_path: Path, seconds: Seconds) -> DayClock:
    """A day of 100 s with two gates."""
    gates = [Gate(0.8, "evening"), Gate(0.5, "noon")]
    return DayClock(tmp_path / "clock", day_seconds=100.0, gates=gates, patience_seconds=30.0, now=seconds)


def nothing(_sight: str) -> bool:
    """Is seen."""
    return False


def everything(_sight: str) -> bool:
    """Is seen already."""
    return True


def after(clock: DayClock, seconds: Seconds, passed: float, has_seen: Callable[[str], bool]) -> float:
    """The share of the day that much later, as the producers read it."""
    seconds.now += passed
    clock.tick(has_seen)
    return read_share(clock._path)


def test_it_begins_with_the_first_tick(clock: DayClock, seconds: Seconds) -> None:
    assert after(clock, seconds, 50.0, nothing) == 0.0
    assert after(clock, seconds, 10.0, nothing) == pytest.approx(0.1)


def test_it_waits_at_a_gate_until_that_was_seen(clock: DayClock, seconds: Seconds) -> None:
    clock.tick(nothing)

    assert after(clock, seconds, 70.0, nothing) == pytest.approx(0.5)
    assert clock.waits_for == "noon"
    assert after(clock, seconds, 20.0, nothing) == pytest.approx(0.5)
    assert after(clock, seconds, 5.0, lambda sight: sight == "noon") == pytest.approx(0.5)
    assert clock.waits_for == ""
    assert after(clock, seconds, 10.0, nothing) == pytest.approx(0.6)


def test_its_patience_ends(clock: DayClock, seconds: Seconds) -> None:
    clock.tick(nothing)
    after(clock, seconds, 60.0, nothing)

    assert after(clock, seconds, 29.0, nothing) == pytest.approx(0.5)
    assert after(clock, seconds, 1.0, nothing) == pytest.approx(0.5)
    assert after(clock, seconds, 20.0, nothing) == pytest.approx(0.7)


def test_it_does_not_wait_for_what_was_seen_before(clock: DayClock, seconds: Seconds) -> None:
    clock.tick(everything)

    assert after(clock, seconds, 70.0, everything) == pytest.approx(0.7)
    assert after(clock, seconds, 50.0, everything) == pytest.approx(1.2)


def test_the_busiest_moment_is_one_of_full_load(tmp_path: Path) -> None:
    day = synthetic_day()
    assert day.rate_at(day.busiest_share) == max(day.rates)
    assert day.rate_at(day.busiest_share + 1.01 / len(day.rates)) < max(day.rates)

    trace = tmp_path / "trace.csv"
    trace.write_text(
        "t,load\n" + "".join(f"{i},{100 + 900 * (i == 60) + 400 * (55 <= i < 66)}\n" for i in range(120))
    )
    found = from_trace(trace)
    assert found.rate_at(found.busiest_share) >= 1_500


def test_a_profile_of_one_step_is_busiest_then() -> None:
    assert LoadProfile("flat", (5.0,)).busiest_share == 0.0
