"""Counts the messages of a producer by the hashes of their keys.

A hot hash is counted on its own, so that it can be distinguished from its neighbours. The other hashes are
counted in blocks of 64. The size of a report is therefore bounded, however many keys there are.
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

from controller.client.layout_source import LayoutSource, ReportsToWorkers
from controller.domain.errors import CleaveError, InvalidInput
from controller.domain.hash_range import RING_SIZE
from controller.domain.key_count_limits import KeyCount

_log = logging.getLogger(__name__)

HOT_HASHES = 1_024
"""Number of hashes that are counted on their own: those with most messages."""
BLOCK_HASHES = 64
_KEYLESS = -1


def summed(counts: Counter[int]) -> list[KeyCount]:
    """Return the report of the message counts in `counts`, the number of messages by segment hash. An entry contains
    the first hash, the number of hashes, and the number of messages. The report begins with the `HOT_HASHES` hashes
    that have most messages, one entry for each. Entries for blocks of `BLOCK_HASHES` hashes follow, with the messages
    of all other hashes. Both groups are in the order of hashes, and no entry has 0 messages.

    `counts[_KEYLESS]` is the number of messages without a key. If there are any, the last entry counts these messages
    for the whole ring. The function removes `_KEYLESS` from `counts`.
    """
    keyless = counts.pop(_KEYLESS, 0)
    hot = dict(nlargest(HOT_HASHES, counts.items(), key=lambda item: item[1]))
    blocks: Counter[int] = Counter()
    for segment_hash, messages in counts.items():
        if segment_hash not in hot:
            blocks[segment_hash // BLOCK_HASHES] += messages
    cold = [(block * BLOCK_HASHES, BLOCK_HASHES, messages) for block, messages in sorted(blocks.items())]
    unkeyed = [(0, RING_SIZE, keyless)] if keyless else []
    return [(segment_hash, 1, messages) for segment_hash, messages in sorted(hot.items())] + cold + unkeyed


class KeyCounts:
    """The key counts of one producer, reported periodically by a thread that `start` begins."""

    def __init__(
        self, hand_in: Callable[[Sequence[KeyCount]], None], every_seconds: float, lock: threading.RLock
    ) -> None:
        """Create the counter without starting its thread. `hand_in` is called in that thread with a report
        (`summed`), every `every_seconds` while there are counts. `lock` protects the counts: the caller of
        `count` holds it.

        If `hand_in` raises an Exception, the counts are lost, which is harmless because the next counts are
        similar; an Exception that is no CleaveError is logged.
        """
        self._hand_in, self._every_seconds, self._lock = hand_in, every_seconds, lock
        self._counts: Counter[int] = Counter()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cleave-key-counts", daemon=True)

    @classmethod
    def handed_to(
        cls, source: LayoutSource, topic: str, producer: str, every_seconds: float, lock: threading.RLock
    ) -> Self:
        """Return a counter that reports to the layout source of a producer, every `every_seconds` once it is
        started. `topic` is a full name, `producer` is the producer's id, and `lock` the lock that the callers
        of `count` hold. Raises InvalidInput if `every_seconds` is not above 0 and finite, or if the source
        does not forward key counts (`ReportsToWorkers`).
        """
        if not 0 < every_seconds < math.inf:
            raise InvalidInput(f"key counts every {every_seconds} s; give more than 0, or None")
        if not isinstance(source, ReportsToWorkers):
            raise InvalidInput(
                "key counts are sent to Cleave's workers, which this source cannot reach; give an HttpSource"
            )
        return cls(partial(source.hand_in, topic, producer), every_seconds, lock)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def count(self, segment_hash: int | None) -> None:
        """Count a message with this hash, or without a key if None. The caller holds the lock."""
        self._counts[_KEYLESS if segment_hash is None else segment_hash] += 1

    def close(self) -> None:
        """End the thread, and drop counts that were not sent. The thread must have been started. Waits for a
        report in progress.
        """
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        """Report the counts every `every_seconds` until `close`, and begin again at 0 after each report.
        Counts that cannot be sent are dropped.
        """
        while not self._closing.wait(self._every_seconds):
            with self._lock:
                counts, self._counts = self._counts, Counter()
            if counts:
                try:
                    self._hand_in(summed(counts))
                except CleaveError:
                    continue
                except Exception:  # noqa: BLE001 - the thread would end, and the worker would get no more counts
                    _log.exception("cannot send key counts")
