"""Ages and figures of bundles as people read them."""

from __future__ import annotations

import pytest

from controller.bundles.proposal_tables import figure
from controller.domain.formatting import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "120 min"), (7_200, "2 h"), (400_000, "5 d")],
)
def test_an_age_is_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("age_ms", 8_000_000.0, "2 h"),
        ("milliseconds", 90_000.0, "90 s"),
        ("reported_at", 0.0, "1970-01-01 00:00:00"),
        ("usage", 0.0512345, "0.05123"),
        ("byte_rate", 10_485_760.0, "10,485,760"),
        ("msg_rate", 9_999.6, "10,000"),
        (None, None, None),
    ],
)
def test_afigure_is_told_by_its_metric(metric: str | None, value: float | None, text: str | None) -> None:
    assert figure(metric, value) == text
