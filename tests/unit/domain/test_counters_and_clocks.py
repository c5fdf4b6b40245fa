"""Whoever read a counter and however clocks are set: the rate is right within a tenth, or there is none."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.counter_rates import CounterSample, NoRate, judge_counters

END_MS, WINDOW_MS = 1_790_000_060_000, 60_000
RATE, STAND = 1_000, 1_000_000_000_000
"""Messages a second, and how many thousandths the counter had counted before."""
CASES: dict[str, list[tuple[int, int]]] = {
    "one collector": [],
    "a second one reads 50 ms later, its clock is 80 ms behind": [
        (t - 30, t + 50) for t in range(10_000, 60_001, 10_000)
    ],
    "a clock that was 15 s ahead is put right at 25 s": [
        (t + 15_000, t) for t in range(-40_000, 20_001, 10_000)
    ],
    "a clock that was 15 s behind is put right at 25 s": [
        (t - 15_000, t) for t in range(-40_000, 20_001, 10_000)
    ],
    "one message apart, 1 ms behind": [(29_999, 30_001)],
}


def sample(stamp_ms: int, count: int, reader: str, owner: str = "first") -> CounterSample:
    """Stamped after the beginning of the window; the bytes are a hundredfold."""
    return CounterSample(owner, END_MS - WINDOW_MS + stamp_ms, count, count * 100, 0, 0, reader)


def read(stamp_ms: int, read_at_ms: int, reader: str = "") -> CounterSample:
    """The counter as it stood at an instant, stamped by some clock."""
    return sample(stamp_ms, (STAND + RATE * read_at_ms) // 1000, reader)


@pytest.mark.parametrize("reader", ["", "another"])
@pytest.mark.parametrize("name", CASES)
def test_two_readings_of_one_counter_are_no_load(name: str, reader: str) -> None:
    """Those who do not say by which clock they read are caught by the counters themselves."""
    samples = [read(t, t) for t in range(0, 60_001, 10_000)]
    samples += [read(stamp, at, reader) for stamp, at in CASES[name]]
    assert is_right(samples) or not reader


def is_right(samples: list[CounterSample]) -> bool:
    """Return False if there is no rate. The counters rise by RATE, the bytes a hundredfold."""
    found = judge_counters(samples, END_MS, WINDOW_MS)
    if found is None or isinstance(found, NoRate):
        return False
    assert found.stats.msg_rate_in == pytest.approx(RATE, rel=0.1)
    assert found.stats.byte_rate_in == pytest.approx(RATE * 100, rel=0.1)
    return True


@dataclass(frozen=True, slots=True)
class LogMoves:
    """When the log moved to another owner, and when its owner loaded it anew."""

    moved_at_ms: int
    loaded_at_ms: int

    def read(self, at_ms: int, ahead_ms: int, reader: str) -> CounterSample:
        """The counter of whoever owns the log, as a reader has it whose clock is so far ahead."""
        owner = "first" if at_ms < self.moved_at_ms else "second"
        count = STAND + RATE * at_ms if at_ms < self.loaded_at_ms else RATE * (at_ms - self.loaded_at_ms)
        return sample(at_ms + ahead_ms, count // 1000, reader, owner)


any_instant = st.integers(-60_000, 60_000)
any_clock = st.one_of(st.just(0), st.integers(-500, 500), st.integers(-120_000, 120_000))


@given(
    st.builds(LogMoves, any_instant, any_instant),
    st.lists(
        st.tuples(any_clock, any_clock, any_instant, st.sets(st.integers(-12, 12), min_size=2)), max_size=3
    ),
    st.data(),
)
def test_the_rate_is_right_or_there_is_none(
    truth: LogMoves, collectors: list[tuple[int, int, int, set[int]]], data: st.DataObject
) -> None:
    """Collectors side by side, each with a clock that is set at some instant: by then it is another reader."""
    samples = []
    for number, (ahead, ahead_later, set_at_ms, ticks) in enumerate(collectors):
        for tick in ticks:
            at_ms = tick * 5_000 + number * 70
            is_set = at_ms >= set_at_ms
            samples.append(
                truth.read(at_ms, ahead_later if is_set else ahead, f"collector-{number}/{is_set}")
            )
    is_right(data.draw(st.permutations(samples)))
