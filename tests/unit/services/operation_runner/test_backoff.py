"""Delays between attempts: they grow, they end somewhere, and a call that timed out is waited for."""

from __future__ import annotations

import pytest

from controller.domain.errors import CleaveError, DataPlaneTimeout, DataPlaneUnavailable, LostRace, Terminal
from controller.services.operation_runner.backoff import delay_seconds, pause_seconds, wait_seconds


@pytest.mark.parametrize(
    ("error", "attempts", "is_closed", "expected_seconds"),
    [
        (DataPlaneUnavailable("away", 0.01), 0, False, 0.1),
        (DataPlaneUnavailable("away", 0.01), 1, False, 0.2),
        (DataPlaneUnavailable("away", 1.0), 1, False, 1.0),
        (DataPlaneUnavailable("away", 3600.0), 0, False, 5.0),
        (DataPlaneUnavailable("away", 0.01), 1000, False, 5.0),
        (Terminal("not allowed"), 0, False, 5.0),
        (LostRace("held", 0.01), 0, False, 0.1),
        (LostRace("held", 0.01), 1000, False, 0.5),
        (DataPlaneTimeout("no answer", 0.01), 0, False, 8.0),
        (DataPlaneUnavailable("away", 1.0), 0, True, 0.1),
        (DataPlaneUnavailable("away", 0.01), 1000, True, 0.5),
        (DataPlaneUnavailable("not configured here", 5.0), 0, True, 5.0),
        (Terminal("not allowed"), 0, True, 5.0),
        (DataPlaneTimeout("no answer", 0.01), 0, True, 8.0),
    ],
)
def test_an_attempt_comes_after_a_pause_which_is_short_while_ranges_take_no_writes(
    error: CleaveError, attempts: int, is_closed: bool, expected_seconds: float
) -> None:
    pause = delay_seconds(error, attempts, call_timeout_seconds=8.0, is_closed=is_closed)
    assert pause == expected_seconds


def test_pauses_double_up_to_the_longest() -> None:
    assert [pause_seconds(0.01, n) for n in (1, 2, 3, 6, 7)] == [0.01, 0.02, 0.04, 0.25, 0.25]
    assert pause_seconds(0.0, 5) == 0.0


@pytest.mark.parametrize(("age_seconds", "expected_seconds"), [(0.0, 0.1), (0.6, 0.3), (10.0, 0.5)])
def test_a_condition_is_checked_more_rarely_the_longer_it_is_waited_for(
    age_seconds: float, expected_seconds: float
) -> None:
    assert wait_seconds(age_seconds) == expected_seconds
