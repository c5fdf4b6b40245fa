"""What a producer counts of its keys: hot hashes by themselves, the rest by blocks, nothing lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from controller.client.key_counts import BLOCK_HASHES, HOT_HASHES, KeyCount, KeyCounts, summed
from controller.domain.errors import StoreUnavailable
from controller.domain.hash_range import RING_SIZE


@given(st.dictionaries(st.integers(0, RING_SIZE - 1), st.integers(1, 50), max_size=40), st.integers(0, 9))
def test_of_few_keys_each_hash_is_told(counts: dict[int, int], keyless: int) -> None:
    told = summed(Counter({**counts, -1: keyless}))

    hashes = {first: messages for first, width, messages in told if width == 1}
    assert hashes == counts
    assert [one for one in told if one[1] > 1] == ([(0, RING_SIZE, keyless)] if keyless else [])


def test_of_many_the_hot_ones_are_told_and_blocks_with_all_others() -> None:
    counts = Counter(dict.fromkeys(range(0, RING_SIZE, 3), 1))
    counts[999] += 500
    told = summed(counts)

    assert (999, 1, 501) in told
    assert sum(width == 1 for _, width, _ in told) == HOT_HASHES
    assert len(told) <= HOT_HASHES + RING_SIZE // BLOCK_HASHES
    assert sum(messages for _, _, messages in told) == counts.total()
    assert all(first % BLOCK_HASHES == 0 for first, width, _ in told if width == BLOCK_HASHES)


def test_what_cannot_be_handed_in_is_not_told_twice() -> None:
    """The first time nobody answers; the second time only what came since is told."""
    told: list[Sequence[KeyCount]] = []
    handed_in = threading.Semaphore(0)

    def hand_in(counts: Sequence[KeyCount]) -> None:
        told.append(counts)
        handed_in.release()
        if len(told) == 1:
            raise StoreUnavailable("nobody is there", 0.1)

    lock = threading.RLock()
    counting = KeyCounts(hand_in, 0.01, lock)
    counting.start()
    try:
        for segment_hash in (7, 8):
            with lock:
                counting.count(segment_hash)
            assert handed_in.acquire(timeout=30)
    finally:
        counting.close()

    assert told == [[(7, 1, 1)], [(8, 1, 1)]]
