"""Values of messages as bytes: what a schema of the library `pulsar-client` does."""

from __future__ import annotations

from typing import Any, Protocol

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown


class Schema(Protocol):
    """Turns values into bytes and back: `BytesSchema`, `StringSchema`, `JsonSchema` and `AvroSchema` of `pulsar.schema`, or your own class.

    The application's processes agree on the schema. Cleave stores the bytes, and registers no schema with a broker.
    """

    def encode(self, obj: Any) -> bytes:
        """Return the bytes of a value."""

    def decode(self, data: bytes) -> Any:
        """Return the value of the bytes."""


def encoded(schema: Schema | None, value: object) -> bytes:
    """Return the payload of a message. Raises InvalidInput for a value that the schema refuses; without a schema, for other than bytes."""
    if schema is None:
        if not isinstance(value, bytes):
            raise InvalidInput(f"value is {shown(value)}; give bytes, or make the producer with a schema")
        return value
    try:
        return schema.encode(value)
    except Exception as error:
        raise InvalidInput(
            f"{type(schema).__name__} refuses the value {shown(value)}: {type(error).__name__}: {error}; correct the value"
        ) from error


def decoded(schema: Schema | None, data: bytes, message: str) -> Any:
    """Return the value of a payload; without a schema, the bytes. Raises InvalidInput, which names the message, for other schemas' bytes."""
    if schema is None:
        return data
    try:
        return schema.decode(data)
    except Exception as error:
        raise InvalidInput(
            f"{message} is no value of {type(schema).__name__}: {type(error).__name__}: {error}; give the schema that it was sent with, or "
            "read `data`"
        ) from error
