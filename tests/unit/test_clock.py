"""Instants as milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controller.clock import to_ms


@pytest.mark.parametrize(
    ("instant", "milliseconds"),
    [
        (datetime(1970, 1, 1, 0, 0, 0, 1_999, tzinfo=UTC), 1),
        (datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC), -1),
        (datetime(1970, 1, 1, 0, 17, 19, 3_000, tzinfo=UTC), 1_039_003),
    ],
)
def test_milliseconds_are_rounded_down_on_both_sides_of_1970(instant: datetime, milliseconds: int) -> None:
    assert to_ms(instant) == milliseconds
