"""Converts values of messages to bytes and back, with schemas of the library `pulsar-client`."""

from __future__ import annotations

from typing import Any, Protocol

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown


class Schema(Protocol):
    """Converts values to bytes and back: `BytesSchema`, `StringSchema`, `JsonSchema` and `AvroSchema` of
    `pulsar.schema`, or your own class.

    The application's processes must agree on the schema. Cleave stores the bytes, and registers no schema
    with a broker.
    """

    def encode(self, obj: Any) -> bytes:
        """Return the bytes of a value."""

    def decode(self, data: bytes) -> Any:
        """Return the value of the bytes."""


def encoded(schema: Schema | None, value: object) -> bytes:
    """Return the payload of a message. Raises InvalidInput for a value that the schema refuses, or without a
    schema for a value that is not bytes.
    """
    if schema is None:
        if not isinstance(value, bytes):
            raise InvalidInput(f"value is {shown(value)}; give bytes, or create the producer with a schema")
        return value
    try:
        return schema.encode(value)
    except Exception as error:
        raise InvalidInput(
            f"{type(schema).__name__} refuses the value {shown(value)}: {type(error).__name__}: {error}; correct the value"
        ) from error


def decoded(schema: Schema | None, data: bytes, message: str) -> Any:
    """Return the value of a payload; without a schema, the bytes. Raises InvalidInput with the name of the
    message if the schema cannot decode it.
    """
    if schema is None:
        return data
    try:
        return schema.decode(data)
    except Exception as error:
        raise InvalidInput(
            f"{message} is not a value of {type(schema).__name__}: {type(error).__name__}: {error}; use the schema with which it was sent, or "
            "read `data`"
        ) from error
