"""Keys of messages of other programs, whose properties may be anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from controller.dataplane.log_client import Metadata, OutgoingMessage
from controller.dataplane.pulsar.messages import incoming, key_of, outgoing

MARKED = {"cleave.key": "base64"}


def _message(key: str) -> Any:
    return SimpleNamespace(
        partition_key=lambda: key,
        properties=lambda: MARKED,
        event_timestamp=lambda: 0,
        publish_timestamp=lambda: 0,
        data=lambda: b"payload",
    )


@pytest.mark.parametrize("key", ["abc", "a", "schl\u00fcssel", "no base64!", "YQ==\n"])
def test_a_key_that_is_marked_as_base64_and_is_none_is_the_key_as_it_is(key: str) -> None:
    """An error would come again at each read, and no later message of the segment would be delivered."""
    assert key_of(_message(key), MARKED) == key.encode()
    assert incoming(_message(key), (1, 0, 0)).key == key.encode()


def test_a_key_in_base64_is_decoded() -> None:
    assert key_of(_message("/wA="), MARKED) == b"\xff\x00"


@pytest.mark.parametrize("key", [b"a", b"a\0b", b"\0"])
@pytest.mark.parametrize("is_binary", [False, True])
def test_a_key_comes_back_as_text_or_bytes_as_it_was_sent(key: bytes, is_binary: bool) -> None:
    built = outgoing(OutgoingMessage(b"x", key, metadata=Metadata((), None, is_binary)), 1, None)
    sent = SimpleNamespace(
        **{**vars(_message("")), "partition_key": built.partition_key, "properties": built.properties}
    )

    received = incoming(sent, (1, 0, 0))  # type: ignore[arg-type]

    assert received.key == key
    assert (received.metadata is not None and received.metadata.is_binary_key) == is_binary


def test_a_key_that_is_no_text_comes_back_as_bytes() -> None:
    built = outgoing(OutgoingMessage(b"x", b"\xff"), 1, None)

    assert built.properties() == MARKED
    assert key_of(built, built.properties()) == b"\xff"
