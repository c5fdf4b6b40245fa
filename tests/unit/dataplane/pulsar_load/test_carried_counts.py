"""Counters that rise although subscriptions go, and a new series where one of them went."""

from __future__ import annotations

import pytest

from controller.dataplane.pulsar_load.carried_counts import Series
from controller.dataplane.pulsar_load.metrics_page import TopicCounters


def counters(msg_in: int, **out: int) -> TopicCounters:
    """Ten bytes a message."""
    return TopicCounters(msg_in, msg_in * 10, None, {name.encode(): (n, n * 10) for name, n in out.items()})


def after(*readings: TopicCounters) -> Series:
    """The series of these readings, one a second from the second 1 on."""
    series = Series(readings[0])
    for second, reading in enumerate(readings[1:], 2):
        series = series.next(reading, second * 1000)
    return series


@pytest.mark.parametrize(
    ("readings", "msg_out", "since_ms"),
    [
        ([counters(5, a=3, b=4), counters(6, a=5, b=4)], 9, None),
        ([counters(5, a=3, b=4), counters(6, a=5), counters(7, a=6)], 10, 2000),
        ([counters(5, a=3, b=4), counters(5, a=1, b=4), counters(5, a=2, b=4)], 9, 2000),
        ([counters(5, a=3, b=4), counters(5, a=3), counters(5)], 7, 3000),
    ],
    ids=["none went", "one was deleted", "one was made anew", "one after the other was deleted"],
)
def test_out_is_the_sum_over_subscriptions_and_what_a_lost_one_had_is_carried_in_a_new_series(
    readings: list[TopicCounters], msg_out: int, since_ms: int | None
) -> None:
    series = after(*readings)

    assert (series.msg_out, series.byte_out, series.since_ms) == (msg_out, 10 * msg_out, since_ms)


def test_a_new_subscription_begins_none() -> None:
    assert after(counters(5, a=3), counters(5, a=3, b=1)) == Series(counters(5, a=3, b=1))


def test_a_log_that_was_loaded_anew_counts_from_zero_and_carries_nothing() -> None:
    series = after(counters(5, a=3, b=4), counters(6, a=3), counters(1, a=1))

    assert series == Series(counters(1, a=1))
