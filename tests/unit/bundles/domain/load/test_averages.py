"""Averages of a bundle's rates over samples."""

from __future__ import annotations

import pytest

from controller.bundles.domain.load.averages import (
    UNKNOWN_LOAD,
    BundleLoad,
    TimeAverage,
    moving_average,
)
from controller.bundles.domain.load.stats import BundleStats


@pytest.mark.parametrize(
    ("old", "current", "history", "new"), [(None, 0.4, 0.9, 0.4), (1.0, 0.0, 0.9, 0.9), (0.5, 1.0, 0.0, 1.0)]
)
def test_a_moving_average_begins_with_its_first_observation(
    old: float | None, current: float, history: float, new: float
) -> None:
    assert moving_average(old, current, history) == pytest.approx(new)


def test_the_first_sample_replaces_the_seeds() -> None:
    assert (UNKNOWN_LOAD.short_term.msg_rate, UNKNOWN_LOAD.long_term.byte_rate) == (100.0, 100_000.0)
    load = UNKNOWN_LOAD.with_sample(BundleStats(1, 2, 30, 40))
    for average in (load.short_term, load.long_term):
        assert (average.sample_count, average.msg_rate, average.byte_rate) == (1, 3, 70)


def test_an_average_is_plain_until_it_is_full_and_then_forgets_slowly() -> None:
    average = TimeAverage(3)
    seen = []
    for rate in (3.0, 6.0, 9.0, 12.0):
        average = average.with_sample(BundleStats(msg_rate_in=rate))
        seen.append(average.msg_rate_in)
    assert seen == [3.0, 4.5, 6.0, 8.0]  # the fourth counts a third, as all to come
    assert average.sample_count == 3


def test_short_and_long_term_differ_after_ten_samples() -> None:
    load = BundleLoad()
    for rate in [0.0] * 10 + [110.0]:
        load = load.with_sample(BundleStats(byte_rate_in=rate))
    assert load.short_term.byte_rate == pytest.approx(11.0)
    assert load.long_term.byte_rate == pytest.approx(10.0)
