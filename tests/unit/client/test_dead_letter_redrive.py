"""A dead letter that the producer refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from controller.client.dead_letter_redrive import put_back
from controller.client.layout_source import TopicSnapshot
from controller.client.producer import MAX_MESSAGE_BYTES
from controller.dataplane.log_client import OutgoingMessage
from controller.domain.errors import InvalidInput
from controller.domain.hash_range import FULL_RANGE
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment
from tests.support.scripted_reader import ScriptedReader

TOO_LONG = b"x" * (MAX_MESSAGE_BYTES + 1)


class Source:
    """A topic with one segment, which never changes."""

    def topic(self, name: str) -> TopicSnapshot:
        """As `LayoutSource.topic`."""
        segment = Segment(0, FULL_RANGE)
        return TopicSnapshot(1, name, SegmentLayout.from_segments(1, 1, (segment,)), {0: "log_0"})

    def watch(self, _topic_id: int, _on_change: Callable[[], None]) -> SimpleNamespace:
        """As `LayoutSource.watch`, without a change."""
        return SimpleNamespace(close=lambda: None)


class Logs:
    """The log of the topic, and the dead-letter log that `letters` reads."""

    def __init__(self, letters: ScriptedReader) -> None:
        self._letters = letters
        self.stored: list[bytes] = []

    def append(self, _log: str, messages: Sequence[OutgoingMessage], **_: Any) -> int:
        """As `LogClient.append`."""
        self.stored += [message.payload for message in messages]
        return len(messages)

    def open_reader(self, *_: Any, **__: Any) -> ScriptedReader:
        """As `LogClient.open_reader`."""
        return self._letters

    def close(self) -> None:
        """As `LogClient.close`."""

    locate = open_reader_at = open_queue_reader = close


@pytest.mark.parametrize(
    ("letters", "stored", "acknowledged"),
    [((b"1", b"2", TOO_LONG), [b"1", b"2"], [(2,)]), ((TOO_LONG, b"2"), [], [])],
    ids=["behind others", "first"],
)
def test_the_letters_before_a_refused_letter_are_put_back(
    letters: Sequence[bytes], stored: list[bytes], acknowledged: list[tuple[int, ...]]
) -> None:
    """They would otherwise stay, although nothing is wrong with them, and hide which letter is refused."""
    reader = ScriptedReader(*letters)
    logs = Logs(reader)

    with pytest.raises(
        InvalidInput, match=r"at \(\d,\) in letters cannot be put back: a message of .* bytes"
    ):
        put_back(Source(), logs, "letters", "topic://acme/shop/orders", len(letters))

    assert logs.stored == stored
    assert reader.acknowledged == acknowledged
