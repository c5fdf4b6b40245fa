"""What a producer counts of its keys: how many messages lie on which hashes of the ring.

A hot hash is counted by itself, so that it can be told from its neighbours; the rest by blocks of 64 hashes. So what is handed in
is of bounded size, however many keys there are.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import nlargest

from controller.domain.errors import CleaveError
from controller.domain.hash_range import RING_SIZE

KeyCount = tuple[int, int, int]
"""First hash, how many hashes, messages."""

HOT_HASHES = 1_024
"""So many are counted by themselves, those with most messages."""
BLOCK_HASHES = 64


_KEYLESS = -1


def summed(counts: Counter[int]) -> list[KeyCount]:
    """What is handed in for messages by hash: the hottest hashes, and blocks with all others. Those without a key are anywhere."""
    keyless = counts.pop(_KEYLESS, 0)
    hot = dict(nlargest(HOT_HASHES, counts.items(), key=lambda item: item[1]))
    blocks: Counter[int] = Counter()
    for one, messages in counts.items():
        if one not in hot:
            blocks[one // BLOCK_HASHES] += messages
    rest = [(block * BLOCK_HASHES, BLOCK_HASHES, messages) for block, messages in sorted(blocks.items())]
    anywhere = [(0, RING_SIZE, keyless)] if keyless else []
    return [(one, 1, messages) for one, messages in sorted(hot.items())] + rest + anywhere


class KeyCounts:
    """Counts for one producer, and hands in now and then, from a thread of its own."""

    def __init__(
        self, hand_in: Callable[[Sequence[KeyCount]], None], every_seconds: float, lock: threading.RLock
    ) -> None:
        """`lock` is held by whoever counts. What `hand_in` cannot deliver (a CleaveError) is lost: the next counts say the same."""
        self._hand_in, self._every_seconds, self._lock = hand_in, every_seconds, lock
        self._counts: Counter[int] = Counter()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cleave-key-counts", daemon=True)
        self._thread.start()

    def count(self, segment_hash: int | None) -> None:
        """A message on this hash, None: without a key. The lock is held."""
        self._counts[_KEYLESS if segment_hash is None else segment_hash] += 1

    def close(self) -> None:
        """Hand in no more."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._every_seconds):
            with self._lock:
                counts, self._counts = self._counts, Counter()
            if counts:
                try:
                    self._hand_in(summed(counts))
                except CleaveError:
                    continue
