"""Cleave's messages and positions as Pulsar's, and back.

A Pulsar key is text. A key that is UTF-8 travels as it is, so that any client sees it and Key_Shared and compaction
work on it; other bytes travel in base64, with a property that says so.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pulsar

from controller.dataplane.base import LogMessage, OutgoingMessage, Position

_KEY_CODING = "cleave.key"
_BASE64 = "base64"


def outgoing(message: OutgoingMessage, marks: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Arguments of `send_async`. An empty key is no key; `marks` are properties that its batch shares."""
    found: dict[str, Any] = {"content": message.payload}
    if marks:
        found["properties"] = marks
    if not message.key:
        return found
    try:
        text = message.key.decode()
    except UnicodeDecodeError:
        text = ""
    if text and "\0" not in text:
        return found | {"partition_key": text}
    coded = base64.b64encode(message.key).decode()
    return found | {"partition_key": coded, "properties": {**(marks or {}), _KEY_CODING: _BASE64}}


def incoming(message: pulsar.Message, position: Position) -> LogMessage:
    """As read. `published_at_ms` is the producer's clock."""
    text = message.partition_key()
    key: bytes | None = text.encode() if text else None
    if key is not None and message.properties().get(_KEY_CODING) == _BASE64:
        key = base64.b64decode(key)
    return LogMessage(position, message.publish_timestamp(), key, message.data())


def position_of(message_id: pulsar.MessageId) -> Position:
    """(ledger, entry, index in the batch); the index is 0 for a message that is no part of a batch."""
    return (message_id.ledger_id(), message_id.entry_id(), max(0, message_id.batch_index()))
