"""Counts of keys by the segments they overlap, as a look at every segment has them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.hash_range import RING_SIZE
from controller.domain.key_count_limits import PRODUCER_MESSAGES, SEGMENT_MESSAGES, KeyCount, by_segment
from controller.domain.layout import SegmentLayout

COUNTS = st.lists(
    st.tuples(st.integers(0, RING_SIZE - 1), st.integers(1, RING_SIZE), st.integers(0, PRODUCER_MESSAGES)),
    max_size=20,
)


@given(COUNTS, st.sampled_from([1, 2, 3, 7, 64]))
def test_each_count_is_with_every_segment_that_it_overlaps(counts: list[KeyCount], segments: int) -> None:
    layout = SegmentLayout.initial(segments, now=0)
    by_hand = {
        index: found
        for index, segment in enumerate(layout.active)
        if (
            found := [
                one
                for one in counts
                if one[0] <= segment.hash_range.end and one[0] + one[1] > segment.hash_range.start
            ]
        )
    }
    assert by_segment(layout.active, counts) == by_hand


def test_what_many_workers_land_adds_up_to_whole_numbers() -> None:
    """In 5 minutes 1,000 workers land 30 times each."""
    assert 30 * 1_000 * SEGMENT_MESSAGES < 2**63
