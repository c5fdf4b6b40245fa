"""Rows and figures of brokers, proposals and refusals as people read them."""

from __future__ import annotations

import pytest

from controller.bundles.tables import broker_table, figure
from controller.domain.formatting import duration

READ = [{"broker": "b", "silent_seconds": 90, "usage": 0.4}, {"broker": "gone", "silent_seconds": 7_200}]


def test_active_brokers_that_never_reported_come_last_by_name() -> None:
    rows, _ = broker_table(READ, {"b", "d", "c"})

    assert [(row["broker"], row["active"], row["read"]) for row in rows] == [
        ("b", True, "90 s ago"),
        ("gone", False, "2 h ago"),
        ("c", True, "never"),
        ("d", True, "never"),
    ]


def test_without_an_answer_of_the_cluster_nothing_is_said_of_who_is_active() -> None:
    rows, _ = broker_table(READ, None)

    assert [(row["broker"], row["active"]) for row in rows] == [("b", None), ("gone", None)]


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
