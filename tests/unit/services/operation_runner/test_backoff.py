"""Delays between attempts: they grow, they end somewhere, and a call that timed out is waited for."""

from __future__ import annotations

import pytest

from controller.domain.errors import CleaveError, DataPlaneTimeout, DataPlaneUnavailable, LostRace, Terminal
from controller.services.operation_runner.backoff import delay_seconds, pause_seconds


@pytest.mark.parametrize(
    ("error", "attempts", "expected_seconds"),
    [
        (DataPlaneUnavailable("away", 0.01), 0, 0.1),
        (DataPlaneUnavailable("away", 0.01), 1, 0.2),
        (DataPlaneUnavailable("away", 1.0), 1, 1.0),
        (DataPlaneUnavailable("away", 3600.0), 0, 5.0),
        (DataPlaneUnavailable("away", 0.01), 1000, 5.0),
        (Terminal("not allowed"), 0, 5.0),
        (LostRace("held", 0.01), 0, 0.1),
        (LostRace("held", 0.01), 1000, 0.5),
        (DataPlaneTimeout("no answer", 0.01), 0, 8.0),
    ],
)
def test_an_attempt_comes_after(error: CleaveError, attempts: int, expected_seconds: float) -> None:
    assert delay_seconds(error, attempts, call_timeout_seconds=8.0) == expected_seconds


@pytest.mark.parametrize(
    ("error", "attempts", "expected_seconds"),
    [
        (DataPlaneUnavailable("away", 1.0), 0, 0.1),
        (DataPlaneUnavailable("away", 0.01), 1000, 0.5),
        (DataPlaneUnavailable("not configured here", 5.0), 0, 5.0),
        (Terminal("not allowed"), 0, 5.0),
        (DataPlaneTimeout("no answer", 0.01), 0, 8.0),
    ],
)
def test_while_ranges_take_no_writes_an_attempt_comes_soon(
    error: CleaveError, attempts: int, expected_seconds: float
) -> None:
    assert delay_seconds(error, attempts, call_timeout_seconds=8.0, is_closed=True) == expected_seconds


def test_pauses_double_up_to_the_longest() -> None:
    assert [pause_seconds(0.01, n) for n in (1, 2, 3, 6, 7)] == [0.01, 0.02, 0.04, 0.25, 0.25]
    assert pause_seconds(0.0, 5) == 0.0
