"""When a reader with empty hands is passed over, as far as a broker's statistics show it."""

from __future__ import annotations

import pytest

from controller.dataplane.pulsar.cursors import Attachments, Holder
from controller.dataplane.pulsar.reader_stall import StallWatch, looks_stalled
from controller.domain.hash_range import FULL_RANGE, HashRange

LOW, HIGH = FULL_RANGE.halves()


def _holder(reader: str, slots: HashRange, unacknowledged: int = 0, permits: int = 500) -> Holder:
    return Holder("o", reader, "address", (slots,), unacknowledged, permits)


@pytest.mark.parametrize(
    ("holders", "backlog", "expected"),
    [
        pytest.param([_holder("me", LOW, permits=0)], 0, False, id="nothing waits"),
        pytest.param([_holder("me", LOW), _holder("it", HIGH)], 3, True, id="all idle"),
        pytest.param([_holder("me", LOW), _holder("it", HIGH, 1)], 3, False, id="another is at work"),
        pytest.param([_holder("me", LOW)], 3, False, id="what waits may be nobody's"),
        pytest.param([_holder("me", LOW, 2)], 3, False, id="held back"),
        pytest.param([_holder("me", LOW, 3)], 3, True, id="lost on the way"),
        pytest.param([_holder("me", LOW, permits=-4)], 3, True, id="no permits"),
        pytest.param([_holder("it", LOW)], 3, True, id="the broker does not know it"),
    ],
)
def test_what_looks_like_a_stall(holders: list[Holder], backlog: int, expected: bool) -> None:
    found = Attachments(tuple(holders), is_shared=True, backlog=backlog)

    assert looks_stalled(found, "me", held_back=2) is expected


def test_a_stall_counts_when_it_is_seen_twice_in_a_row() -> None:
    watch, looks = StallWatch(0.0), iter([True, False, True, True])

    assert [watch.is_stalled(lambda: next(looks)) for _ in range(4)] == [False, False, False, True]


def test_whoever_hears_something_in_between_starts_anew() -> None:
    watch = StallWatch(0.0)
    watch.is_stalled(lambda: True)
    watch.note_activity()

    assert not watch.is_stalled(lambda: True)


def test_nobody_asks_before_its_time() -> None:
    assert not StallWatch(3600.0).is_stalled(lambda: pytest.fail("asked"))
