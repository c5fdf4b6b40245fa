"""What the clients of `bench_pulsar_controllers` say of the acknowledgements they saw."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from benchmarks.paced_client import Acknowledgements


def acknowledged(monkeypatch: pytest.MonkeyPatch, instants: Iterable[float]) -> Acknowledgements:
    """Ten messages at each instant."""
    found = Acknowledgements()
    for instant in instants:
        monkeypatch.setattr(time, "monotonic", lambda instant=instant: instant)
        found.note(10)
    return found


@pytest.mark.parametrize(
    ("begin", "end", "worst_ms"),
    [
        (1.0, 1.2, 100),
        (1.2, 1.9, 500),  # the gap that begins before the window's end counts whole
        (1.75, 1.9, 500),  # so does one that began before the window, and one that covers it
        (2.21, 2.3, 100),
    ],
)
def test_gaps_that_touch_the_window_count(
    monkeypatch: pytest.MonkeyPatch, begin: float, end: float, worst_ms: float
) -> None:
    seen = acknowledged(monkeypatch, [1.0, 1.1, 1.2, 1.3, 1.4, 1.9, 2.0, 2.1, 2.2, 2.3])

    assert seen.worst_gap_ms(begin, end) == pytest.approx(worst_ms)
    assert seen.messages == 100


def test_acknowledgements_of_several_threads_may_come_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert acknowledged(monkeypatch, [1.0, 1.2, 1.1]).worst_gap_ms(1.0, 1.2) == pytest.approx(100)


def test_no_acknowledgement_is_not_taken_for_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="nothing was produced"):
        acknowledged(monkeypatch, []).worst_gap_ms(0.0, 1.0)
