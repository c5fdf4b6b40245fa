"""What a producer counts of its keys: how many messages lie on which hashes of the ring.

A hot hash is counted by itself, so that it can be told from its neighbours; the rest by blocks of 64 hashes. So what is handed in
is of bounded size, however many keys there are.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from heapq import nlargest
from typing import Self

from controller.client.layout_source import LayoutSource, TakesKeyCounts
from controller.domain.errors import CleaveError, InvalidInput
from controller.domain.hash_range import RING_SIZE
from controller.domain.key_counts import KeyCount

_log = logging.getLogger(__name__)

HOT_HASHES = 1_024
"""So many are counted by themselves, those with most messages."""
BLOCK_HASHES = 64
_KEYLESS = -1


def summed(counts: Counter[int]) -> list[KeyCount]:
    """What is handed in for messages by hash: the hottest hashes, and blocks with all others. Messages without a key count for the
    whole ring.
    """
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
    """Counts for one producer, and hands in now and then, from a thread of its own that `start` begins."""

    def __init__(
        self, hand_in: Callable[[Sequence[KeyCount]], None], every_seconds: float, lock: threading.RLock
    ) -> None:
        """`lock` is held by whoever counts. What `hand_in` cannot deliver (a CleaveError) is lost: the next counts say the same."""
        self._hand_in, self._every_seconds, self._lock = hand_in, every_seconds, lock
        self._counts: Counter[int] = Counter()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cleave-key-counts", daemon=True)

    @classmethod
    def handed_to(
        cls, source: LayoutSource, topic: str, producer: str, every_seconds: float, lock: threading.RLock
    ) -> Self:
        """Counts of a producer, for the source that tells it of its topic. Raises InvalidInput."""
        if not 0 < every_seconds < math.inf:
            raise InvalidInput(f"key counts every {every_seconds} s; give more than 0, or None")
        if not isinstance(source, TakesKeyCounts):
            raise InvalidInput("counts of keys are handed in to Cleave's workers; give an HttpSource")
        return cls(partial(source.hand_in, topic, producer), every_seconds, lock)

    def start(self) -> None:
        """Hand in from now on."""
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
                except Exception:  # noqa: BLE001 - the thread would end, and the worker would get no more counts
                    _log.exception("counts of keys not handed in")
