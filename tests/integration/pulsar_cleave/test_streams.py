"""An application sends and receives through one object, on each data plane."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pulsar.schema import AvroSchema, BytesSchema, Integer, JsonSchema, Record, String, StringSchema

import pulsar_cleave as cleave
from controller.devstack.serving import token_for
from tests.integration.pulsar_cleave.conftest import Shop, send
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration
NOON = datetime(2026, 11, 26, 12, 0, 0, 5000, tzinfo=UTC)


def received(consumer: cleave.StreamConsumer, count: int) -> list[cleave.Message]:
    found: list[cleave.Message] = []
    while len(found) < count:
        message = consumer.receive(60)
        assert message is not None, found
        found.append(message)
    return found


def test_messages_come_out_as_they_went_in(shop: Shop) -> None:
    shop.bench.topic_with(segments=2)
    with shop.client.producer(shop.topic) as producer:
        producer.send(b"one espresso", key="customer-7", properties={"trace": "1"}, event_time=NOON)
        producer.send(b"two", key="customer-7")
        producer.send(b"bytes", key=b"customer-8")
        producer.send(b"no text", key=b"\xff\x00")
        producer.send(b"none")
        with pytest.raises(cleave.InvalidInput):
            producer.send(b"x", key=7)  # type: ignore[arg-type]

    with shop.client.stream_consumer(shop.topic, "billing", name="billing-1") as consumer:
        found = {one.data: one for one in received(consumer, 5)}
        assert consumer.acknowledge(list(found.values()))

        # pulsar-client groups acknowledgements: the broker's count follows the call.
        wait_until(
            lambda: sum(one.messages or 0 for one in consumer.lag()) == 0, message="no message is left"
        )
    first = found[b"one espresso"]
    assert (first.key, dict(first.properties), first.event_time) == ("customer-7", {"trace": "1"}, NOON)
    assert (first.topic, first.redelivery_count) == (shop.topic, 0)
    assert found[b"two"].properties == {}
    assert found[b"two"].event_time is None
    assert found[b"two"].message_id > first.message_id
    assert abs((first.publish_time - datetime.now(UTC)).total_seconds()) < 600
    assert [found[one].key for one in (b"bytes", b"no text", b"none")] == [b"customer-8", b"\xff\x00", None]


def test_iteration_acknowledges_message_by_message(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    send(shop, 10, keys=1)

    seen = []
    with shop.client.stream_consumer(shop.topic, "billing", name="billing-1") as consumer:
        for message in consumer:
            seen.append(int(message.value))
            assert consumer.acknowledge(message)
            if len(seen) == 4:
                break
    with shop.client.stream_consumer(shop.topic, "billing", name="billing-1") as consumer:
        seen += [int(one.value) for one in received(consumer, 6)]

    assert seen == list(range(10))


def test_what_is_acknowledged_negatively_comes_again_in_order(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    send(shop, 6, keys=1)

    with shop.client.stream_consumer(shop.topic, "billing", name="billing-1") as consumer:
        first, second = received(consumer, 2)
        consumer.acknowledge(first)
        consumer.negative_acknowledge(second)

        assert [int(one.value) for one in received(consumer, 5)] == [1, 2, 3, 4, 5]


class Order(Record):  # type: ignore[misc] # of a library without types
    customer = String()
    cups = Integer()


@pytest.mark.parametrize(
    ("schema", "value", "as_sent"),
    [
        (BytesSchema(), b"\x00\xff", b"\x00\xff"),
        (StringSchema(), "ein Espresso, schön", "ein Espresso, schön".encode()),
        (JsonSchema(Order), Order(customer="customer-7", cups=2), None),
        (AvroSchema(Order), Order(customer="customer-7", cups=2), None),
    ],
    ids=["bytes", "string", "json", "avro"],
)
def test_values_of_a_schema_come_out_as_they_went_in(
    shop: Shop, schema: cleave.Schema, value: object, as_sent: bytes | None
) -> None:
    shop.bench.topic_with(segments=1)
    with shop.client.producer(shop.topic, schema=schema) as producer:
        producer.send(value, key="customer-7")
        with pytest.raises(cleave.InvalidInput, match="correct the value"):
            producer.send(7)

    with shop.client.stream_consumer(shop.topic, "billing", name="billing-1", schema=schema) as consumer:
        (message,) = received(consumer, 1)
    assert message.value == value
    assert message.data == (schema.encode(value) if as_sent is None else as_sent)


def test_every_form_of_a_topics_name_is_taken(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    short = shop.topic.removeprefix("topic://")
    for form in (short, f"persistent://{short}", shop.topic):
        with shop.client.producer(form) as producer:
            producer.send(b"x")

    with shop.client.stream_consumer(short, "billing", name="billing-1") as consumer:
        assert [one.topic for one in received(consumer, 3)] == [shop.topic] * 3


def test_without_a_login_for_the_topics_data_plane_nothing_is_made(shop: Shop) -> None:
    shop.bench.topic_with(segments=1)
    with cleave.Client(shop.worker, token_for(shop.topic)) as stranger:
        if shop.login is None:
            with stranger.producer(shop.topic) as producer:  # this broker asks for no login
                producer.send(b"x")
        else:
            with pytest.raises(cleave.Unsupported, match="embedded=EmbeddedAuth"):
                stranger.producer(shop.topic)
    other = "topic://acme/shop/others"
    with pytest.raises(cleave.AccessForbidden):
        shop.client.producer(other)
