"""Converts Cleave's messages and positions to Pulsar's, and back.

A Pulsar key is text. A key that is UTF-8 is sent unchanged, so that any client sees it, and Key_Shared and
compaction work with it. Other bytes, and text with NUL, are sent in base64. A property marks such keys, and also
UTF-8 keys that the application gave as bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import _pulsar
import pulsar

from controller.dataplane.log_client import LogMessage, Metadata, OutgoingMessage, Position

RESERVED = "cleave."
"""Prefix of the properties that are Cleave's own."""
_KEY_CODING = RESERVED + "key"
_BASE64, _BASE64_TEXT, _UTF8 = "base64", "base64-text", "utf-8"
_CODED, _BINARY = (_BASE64, _BASE64_TEXT), (_BASE64, _UTF8)
"""Values of the property for keys in base64, and for keys that the application gave as bytes."""
_BATCH_SIZE_FIELD = 6
_VARINT, _BYTES = 0, 2
"""Wire types of protobuf."""
_new = tuple.__new__  # takes a third of the time of the constructor of NamedTuple
_Builder = _pulsar.MessageBuilder
_with_content, _with_sequence_id = _Builder.content, _Builder.sequence_id
_with_partition_key, _build = _Builder.partition_key, _Builder.build
"""Methods that are looked up once, because a lookup for each message would be a tenth of the cost of building
it.
"""


class EntryMarks(NamedTuple):
    """Data about an entry for the broker and the reader. The entry's first message carries it."""

    ordering_key: str
    properties: Mapping[str, str]


def outgoing(message: OutgoingMessage, sequence_id: int, marks: EntryMarks | None) -> Any:
    """Return the message in the form in which the library sends it, with its metadata and with `marks`, the marks of
    its entry (None: no marks). `sequence_id` is the message's number in its producer's sequence. The message's bucket
    hash is not sent.

    An empty key counts as no key. A key that is not UTF-8 or contains NUL is sent in base64. A property records this,
    and also records a UTF-8 key that the application gave as bytes.

    The message is built with functions below the library's Python classes, whose argument checks take longer than
    everything else.
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
    """Set the key as text that every client accepts: base64 for bytes that are not UTF-8 or contain NUL.

    A property records that the key is in base64, and that the application gave the key as bytes: with `is_binary`, or
    if the key is not UTF-8.
    """
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text, is_binary = None, True
    if text is None or "\0" in text:
        text = base64.b64encode(key).decode()
        built.property(_KEY_CODING, _BASE64 if is_binary else _BASE64_TEXT)
    elif is_binary:
        built.property(_KEY_CODING, _UTF8)
    _with_partition_key(built, text)


def incoming(message: pulsar.Message, position: Position, published_at_ms: int | None = None) -> LogMessage:
    """Return the library's `message` as a reader returns messages, with the given position and with 1 as
    `deliveries`. `published_at_ms` is the publication time by the producer's clock, in milliseconds since the Unix
    epoch. None: the time is read from the message. All messages of an entry have the same time, so a caller may read
    it once.
    """
    if published_at_ms is None:
        published_at_ms = message.publish_timestamp()
    properties = message.properties()
    key, metadata = key_of(message, properties), _metadata_of(message, properties)
    return _new(LogMessage, (position, published_at_ms, key, message.data(), 1, metadata))


def key_of(message: pulsar.Message, properties: Mapping[str, str]) -> bytes | None:
    """Return the bytes of the key that the application gave. `properties` are those of the message. None for a
    message without a key, or with an empty one. A key that a property marks as base64 is decoded. If the marked key
    is not base64, as another program may send it, its text is returned in UTF-8.
    """
    text = message.partition_key()
    if not text:
        return None
    if properties.get(_KEY_CODING) in _CODED:
        with suppress(ValueError):
            return base64.b64decode(text, validate=True)
    key: bytes = text.encode()
    return key


def _metadata_of(message: pulsar.Message, properties: Mapping[str, str]) -> Metadata | None:
    """Return the metadata that the application sent in addition to key and payload: its properties, without those
    that begin with `RESERVED`; its event time, None for 0; and as `is_binary_key` True if the key was given as bytes.
    Return None if there are no such properties, no event time and no key that was given as bytes.
    """
    event_time_ms = message.event_timestamp()
    if not properties and not event_time_ms:
        return None
    own = tuple((name, value) for name, value in properties.items() if not name.startswith(RESERVED))
    is_binary_key = properties.get(_KEY_CODING) in _BINARY
    if not own and not event_time_ms and not is_binary_key:
        return None
    return Metadata(own, event_time_ms or None, is_binary_key)


def position_of(message_id: pulsar.MessageId) -> Position:
    """Return (ledger, entry, index in the batch). The index is 0 for a message outside a batch."""
    entry, index = place_of(message_id)
    return (*entry, max(0, index))


def place_of(message_id: pulsar.MessageId) -> tuple[tuple[int, int], int]:
    """Return (ledger, entry), and the index in the batch, which is negative for a message outside a batch."""
    return (message_id.ledger_id(), message_id.entry_id()), message_id.batch_index()


def ends_its_entry(message_id: pulsar.MessageId) -> bool:
    """Return True if the message is the last of its batch according to its id. False for a message outside a
    batch, or if the id does not contain the batch's size.
    """
    index: int = message_id.batch_index()
    return 0 <= index == _batch_size(message_id.serialize()) - 1


def shares_its_entry(message_id: pulsar.MessageId) -> bool:
    """Return True if the entry contains other messages too, or may: its size is unknown. False for a message
    outside a batch, or alone in its batch.
    """
    return message_id.batch_index() >= 0 and _batch_size(message_id.serialize()) != 1


def _batch_size(serialized: bytes) -> int:
    """Return the batch size that the id's wire form, the protobuf message `MessageIdData`, contains. 0 if the id
    contains no batch size, or contains a field whose wire type is neither a number nor bytes. The library has no call
    that returns the size.
    """
    offset, field, batch_size = 0, 0, 0
    while offset < len(serialized):
        tag, offset = _varint(serialized, offset)
        field, kind = tag >> 3, tag & 7
        if kind not in (_VARINT, _BYTES):
            return 0
        value, offset = _varint(serialized, offset)
        if kind == _BYTES:
            offset += value
        elif field == _BATCH_SIZE_FIELD:
            batch_size = value
    return batch_size


def _varint(serialized: bytes, offset: int) -> tuple[int, int]:
    """Return the variable-length number of protobuf at the offset, and the offset behind the number."""
    value = shift = 0
    while offset < len(serialized):
        byte = serialized[offset]
        value, shift, offset = value | (byte & 0x7F) << shift, shift + 7, offset + 1
        if byte < 0x80:
            break
    return value, offset
