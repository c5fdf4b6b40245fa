"""Which entries a client keeps, so that the end of a topic is counted without reading them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.stored_entries import NOWHERE, SentBatch, StoredPart
from controller.dataplane.pulsar.topic_end import KEPT_PARTS, TopicEnd


class _Topic:
    """A terminated topic with an entry of a message for each number; `read` are the entries that were read."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self.read: list[tuple[int, int]] = []

    def internal_with_ledgers(self, _topic: str, _deadline: Deadline) -> Mapping[str, Any]:
        last = self._entries - 1
        ledger = {"ledgerId": 7, "entries": self._entries, "metadata": f"state=CLOSED, lastEntryId={last}"}
        return {"state": "Terminated", "lastConfirmedEntry": f"7:{last}", "ledgers": [ledger]}

    def parts_of(
        self, _topic: str, places: Sequence[tuple[int, int]], _deadline: Deadline
    ) -> dict[tuple[int, int], StoredPart | None]:
        self.read += places
        return {place: StoredPart("p", place[1] + 1) for place in places}


@pytest.mark.parametrize(
    ("noted", "read"),
    [(KEPT_PARTS, 0), (KEPT_PARTS + 1, 1), (0, KEPT_PARTS + 1)],
    ids=["all are known", "the first is forgotten", "none is known"],
)
def test_the_last_entries_that_were_reported_as_stored_are_known(noted: int, read: int) -> None:
    entries = max(noted, read)
    topic = _Topic(entries)
    end = TopicEnd(cast(Cursors, topic), "persistent://t/n/x")
    for number in range(noted):
        end.note_stored((7, number), StoredPart("p", number + 1))

    batch = SentBatch("another", 0, 1)
    assert end.stored_of(batch, NOWHERE, Deadline(30.0)) == (0, True)
    assert len(topic.read) == read
