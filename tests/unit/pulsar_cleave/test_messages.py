"""What a received message gives out."""

from __future__ import annotations

import pytest
from pulsar.schema import Integer, JsonSchema, Record

import pulsar_cleave as cleave
from controller.dataplane.log_client import LogMessage


class Order(Record):
    cups = Integer()


def test_bytes_of_another_schema_are_named_with_the_message() -> None:
    stored = LogMessage((7, 1, 0), 0, b"k", b"two cups")
    message = cleave.Message("topic://acme/shop/orders", 3, stored, JsonSchema(Order))

    with pytest.raises(
        cleave.InvalidInput,
        match=r"MessageId\(segment_id=3, position=\(7, 1, 0\)\) of topic://acme/shop/orders is not a value of JsonSchema: JSONDecodeError",
    ):
        _ = message.value
    assert message.data == b"two cups"
