"""A dead letter that the producer refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from controller.client.dead_letter_redrive import put_back
from controller.client.producer import MAX_MESSAGE_BYTES
from controller.dataplane.log_client import LogMessage, OutgoingMessage
from controller.domain.errors import InvalidInput
from tests.support.one_segment import OneSegment
from tests.support.scripted_reader import ScriptedReader

TOO_LONG = b"x" * (MAX_MESSAGE_BYTES + 1)


class Logs:
    """The log of the topic, and the dead-letter log that `letters` reads."""

    def __init__(self, letters: ScriptedReader) -> None:
        self._letters = letters
        self.stored: list[bytes] = []
        self.keys: list[bytes | None] = []

    def append(self, _log: str, messages: Sequence[OutgoingMessage], **_: Any) -> int:
        """As `LogClient.append`."""
        self.stored += [message.payload for message in messages]
        self.keys += [message.key for message in messages]
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
        put_back(OneSegment(), logs, "letters", "topic://acme/shop/orders", len(letters))

    assert logs.stored == stored
    assert reader.acknowledged == acknowledged


def test_a_letter_with_an_empty_key_is_put_back_without_a_key() -> None:
    """Embedded logs of an earlier version hold such letters; a producer accepts no empty key."""
    logs = Logs(ScriptedReader(LogMessage((1,), 0, b"", b"1")))

    assert put_back(OneSegment(), logs, "letters", "topic://acme/shop/orders", 1) == 1
    assert logs.keys == [None]
