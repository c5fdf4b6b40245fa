"""The window of an aggregation: its bounds, and how far back it reads."""

from __future__ import annotations

import pytest

from controller.domain.errors import InvalidInput
from controller.domain.load_window import LoadWindow


@pytest.mark.parametrize(("length_seconds", "lookback_ms"), [(0.2, 60_000), (60, 60_000), (90.5, 90_500)])
def test_a_window_looks_back_by_its_length_and_a_minute_at_least(
    length_seconds: float, lookback_ms: int
) -> None:
    window = LoadWindow.ending_at(1_000_000, length_seconds)
    assert window.start_ms == 1_000_000 - round(length_seconds * 1000)
    assert window.read_from_ms == window.start_ms - lookback_ms


@pytest.mark.parametrize(("length_ms", "lookback_ms"), [(0, 0), (-1, 0), (1, -1)])
def test_a_window_without_length_or_with_a_look_ahead_is_refused(length_ms: int, lookback_ms: int) -> None:
    with pytest.raises(InvalidInput, match=f"{length_ms} ms with {lookback_ms} ms"):
        LoadWindow(0, length_ms, lookback_ms)
