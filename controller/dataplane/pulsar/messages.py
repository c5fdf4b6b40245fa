"""Cleave's messages and positions as Pulsar's, and back.

A Pulsar key is text. A key that is UTF-8 travels as it is, so that any client sees it and Key_Shared and compaction
work on it; other bytes travel in base64. A property says so, and also if the application gave a UTF-8 key as bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import _pulsar
import pulsar

from controller.dataplane.base import LogMessage, Metadata, OutgoingMessage, Position

RESERVED = "cleave."
"""Properties whose names begin so are Cleave's own."""
_KEY_CODING = RESERVED + "key"
_BASE64, _UTF8 = "base64", "utf-8"
_BATCH_SIZE_FIELD = 6
_VARINT, _BYTES = 0, 2
"""Wire types of protobuf."""
_new = tuple.__new__  # a third of what a NamedTuple's own costs
_Builder = _pulsar.MessageBuilder
_with_content, _with_sequence_id = _Builder.content, _Builder.sequence_id
_with_partition_key, _build = _Builder.partition_key, _Builder.build
"""Looked up once: for each message anew they are a tenth of what it costs to build it."""


class EntryMarks(NamedTuple):
    """What a broker and a reader are to know of an entry; its first message carries it."""

    ordering_key: str
    properties: Mapping[str, str]


def outgoing(message: OutgoingMessage, sequence_id: int, marks: EntryMarks | None) -> Any:
    """As the library sends it, with its entry's marks. An empty key is no key.

    It is built below the library's Python classes, whose checks of each argument take longer than all the rest.
    """
    payload, key, _, metadata = message
    built = _with_sequence_id(_with_content(_Builder(), payload), sequence_id)
    if marks is not None:
        built.ordering_key(marks.ordering_key)
        for name, value in marks.properties.items():
            built.property(name, value)
    if metadata is not None:
        for name, value in metadata.properties:
            built.property(name, value)
        if metadata.event_time_ms is not None:
            built.event_timestamp(metadata.event_time_ms)
    if key:
        _with_key(built, key, is_binary=metadata is not None and metadata.is_binary_key)
    return _build(built)


def _with_key(built: Any, key: bytes, *, is_binary: bool) -> None:
    """As text that every client bears."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or "\0" in text:
        text = base64.b64encode(key).decode()
        built.property(_KEY_CODING, _BASE64)
    elif is_binary:
        built.property(_KEY_CODING, _UTF8)
    _with_partition_key(built, text)


def incoming(message: pulsar.Message, position: Position, published_at_ms: int | None = None) -> LogMessage:
    """As read. `published_at_ms` is the producer's clock, the same for all messages of an entry; None: it is asked for."""
    if published_at_ms is None:
        published_at_ms = message.publish_timestamp()
    properties = message.properties()
    key, metadata = key_of(message, properties), _metadata_of(message, properties)
    return _new(LogMessage, (position, published_at_ms, key, message.data(), 1, metadata))


def key_of(message: pulsar.Message, properties: Mapping[str, str]) -> bytes | None:
    """The bytes of the key that the application gave, of a message with these properties."""
    text = message.partition_key()
    if not text:
        return None
    if properties.get(_KEY_CODING) == _BASE64:
        return base64.b64decode(text)
    key: bytes = text.encode()
    return key


def _metadata_of(message: pulsar.Message, properties: Mapping[str, str]) -> Metadata | None:
    """What the application sent in addition to key and payload."""
    event_time_ms = message.event_timestamp()
    if not properties and not event_time_ms:
        return None
    own = tuple((name, value) for name, value in properties.items() if not name.startswith(RESERVED))
    if not own and not event_time_ms and _KEY_CODING not in properties:
        return None
    return Metadata(own, event_time_ms or None, _KEY_CODING in properties)


def position_of(message_id: pulsar.MessageId) -> Position:
    """(ledger, entry, index in the batch); the index is 0 for a message that is no part of a batch."""
    entry, index = place_of(message_id)
    return (*entry, max(0, index))


def place_of(message_id: pulsar.MessageId) -> tuple[tuple[int, int], int]:
    """(ledger, entry), and the index in the batch, which is negative for a message that is no part of one."""
    return (message_id.ledger_id(), message_id.entry_id()), message_id.batch_index()


def ends_its_entry(message_id: pulsar.MessageId) -> bool:
    """Whether it is the last message of its entry, as far as its id says so."""
    index: int = message_id.batch_index()
    return 0 <= index == _batch_size(message_id.serialize()) - 1


def shares_its_entry(message_id: pulsar.MessageId) -> bool:
    """Return False if the entry holds only this message."""
    return message_id.batch_index() >= 0 and _batch_size(message_id.serialize()) != 1


def _batch_size(serialized: bytes) -> int:
    """Of an id in its wire form, the protobuf message `MessageIdData`; 0 where it is not told. No call of the library tells it."""
    at, field, found = 0, 0, 0
    while at < len(serialized):
        tag, at = _varint(serialized, at)
        field, kind = tag >> 3, tag & 7
        if kind not in (_VARINT, _BYTES):
            return 0
        value, at = _varint(serialized, at)
        if kind == _BYTES:
            at += value
        elif field == _BATCH_SIZE_FIELD:
            found = value
    return found


def _varint(serialized: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(serialized):
        byte = serialized[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            break
    return value, at
