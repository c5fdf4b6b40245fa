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
