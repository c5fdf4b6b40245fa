"""Contains the producer of an application."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from controller.client.arguments import checked
from controller.client.closing import StoresOnExit
from controller.client.producer import Producer as InnerProducer
from controller.clock import to_ms
from controller.dataplane.log_client import Metadata
from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.utf8 import utf8
from controller.forks import OneProcess
from pulsar_cleave._schemas import Schema, encoded

MOST_PROPERTIES = 32 * 1024
"""Largest number of bytes in the names and values of one message's properties."""
_RESERVED = "cleave."


class Producer(OneProcess, StoresOnExit):
    """A producer of one topic. Created by `Client.producer`. For one thread.

    The end of a `with` block stores sent messages. A block that ends with an error drops them.
    """

    _guards_itself = frozenset({"send"})  # the inner producer checks the arguments

    def __init__(self, inner: InnerProducer, schema: Schema | None) -> None:
        """Wrap the inner producer. For `Client`."""
        self._inner, self._schema = inner, schema

    @property
    def pending(self) -> int:
        """Number of messages that were sent and are not known to be stored."""
        return self._inner.pending

    def send(
        self,
        value: Any,
        key: str | bytes | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | None = None,
    ) -> None:
        """Send a message. Returns before the message is stored; `flush` waits for that. Blocks while too many
        messages are not stored.

        Messages with the same key are stored in the order in which they are sent. Messages without a key are
        distributed over the segments; an empty key is refused. `event_time` needs a time zone and is stored in
        milliseconds. Names of properties must not begin with `cleave.`.

        Raises InvalidInput for a wrong argument; the message is then not sent. Raises, like `flush`, the
        error that has blocked earlier messages for longer than `send_timeout_seconds`, and at once an error
        that is not retried, such as a refusal of an earlier message; every message is then kept, including
        this one. Raises Terminal after `close`.
        """
        payload = encoded(self._schema, value)
        metadata = None
        if properties is not None or event_time is not None or isinstance(key, bytes):
            metadata = sent_metadata(properties, event_time, is_binary_key=isinstance(key, bytes))
        self._inner.send(payload, key, metadata)

    def flush(self) -> None:
        """Return when every message is stored.

        Raises DataPlaneUnavailable, StoreUnavailable, or SegmentTerminated (no successor of a terminated or
        missing log is known) after `send_timeout_seconds`, and Terminal for a refusal. The messages are kept:
        call `flush` again to continue. Also raises Terminal if the producer was closed and messages were
        dropped.
        """
        self._inner.flush()

    def close(self, *, flush: bool = True) -> None:
        """Store sent messages, then close. Idempotent. Raises Terminal, with the number of dropped messages,
        if messages cannot be stored.

        With `flush=False` messages that are not stored are dropped.
        """
        self._inner.close(flush=flush)


@partial(checked, call="producer.send")
def sent_metadata(
    properties: Mapping[str, str] | None, event_time: datetime | None, *, is_binary_key: bool
) -> Metadata:
    """Return the metadata that is sent with key and payload.

    Raises InvalidInput for a property with an empty or reserved name, or with a NUL character or a text
    without a UTF-8 form, for properties of more than `MOST_PROPERTIES` bytes, for an event time without
    a time zone or not after 1970-01-01T00:00:00Z, and for an argument of a wrong type.
    """
    for name, value in (properties or {}).items():
        if not name or name.startswith(_RESERVED):
            raise InvalidInput(
                f"property {shown(name)} is empty or begins with {_RESERVED!r}; choose another name"
            )
        if b"\0" in utf8(name, "property") + utf8(value, "property"):
            raise InvalidInput(f"property {shown(name)} contains a NUL character; remove it")
    metadata = Metadata(tuple((properties or {}).items()), _milliseconds(event_time), is_binary_key)
    if metadata.size > MOST_PROPERTIES:
        raise InvalidInput(
            f"properties of {metadata.size} bytes; send at most {MOST_PROPERTIES}, and send the rest in the value"
        )
    return metadata


def _milliseconds(event_time: datetime | None) -> int | None:
    """Return the event time in milliseconds since the Unix epoch, at least 1; None for None. Raises
    InvalidInput for an earlier time, and for a time without a time zone.
    """
    if event_time is None:
        return None
    if event_time.tzinfo is None:
        raise InvalidInput(f"event_time is {shown(event_time)}; give a datetime with a time zone")
    at = to_ms(event_time)
    if at < 1:
        raise InvalidInput(f"event_time is {event_time}; give a time after 1970-01-01T00:00:00Z")
    return at
