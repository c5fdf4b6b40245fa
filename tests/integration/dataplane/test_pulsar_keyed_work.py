"""Keyed work on a real broker: parts of batches are acknowledged, a failing key is held, and dead letters are a plain topic."""

from __future__ import annotations

import json
from collections.abc import Callable

import pulsar

from controller.client.http_source import HttpSource
from controller.client.keyed_work import KeyedWork
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.log_client import LogClient, LogMessage
from tests.integration.dataplane.pulsar_setup import PulsarSetup
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(24)]
BAD = KEYS[0]


class RecordingHandler:
    """Refuses one message of one key."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.tries = 0
        self.is_mended = False

    def handle(self, message: LogMessage) -> None:
        key, number = (message.key or b"").decode(), int(message.payload)
        if (key, number) == (BAD, 1) and not self.is_mended:
            self.tries += 1
            raise ValueError("no account")
        self.done.append((key, number))

    def numbers(self, key: str) -> list[int]:
        return [number for one, number in self.done if one == key]


def turn_until(predicate: Callable[[], object], work: KeyedWork) -> None:
    def turn() -> object:
        work.turn(0.05)
        return predicate()

    wait_until(turn, timeout_seconds=90)


def unread(setup: PulsarSetup) -> int:
    plane = setup.app.planes["pulsar"]
    return sum(plane.backlog(log, "billing") or 0 for log in plane.list_segments(setup.topic))


def test_a_held_key_stays_and_the_rest_of_its_batches_does_not_come_again(
    setup: PulsarSetup, logs: LogClient, servers: Servers
) -> None:
    setup.create(1, "billing")
    with Producer(HttpSource(servers), logs, setup.topic) as producer:
        for number in range(3):
            for key in KEYS:
                producer.send(b"%d" % number, key)
    handler = RecordingHandler()
    with StreamConsumer(servers, logs, setup.topic, "billing", "a") as consumer:
        with KeyedWork(
            consumer, handler.handle, first_retry_seconds=0.01, longest_retry_seconds=0.05
        ) as work:
            turn_until(lambda: len(handler.done) == 3 * len(KEYS) - 2 and handler.tries > 2, work)
        [held] = {one.bucket for one in consumer.why() if "is held since" in one.reason}
    assert handler.numbers(BAD) == [0]

    heir = RecordingHandler()
    heir.is_mended = True
    with (
        StreamConsumer(servers, logs, setup.topic, "billing", "b") as consumer,
        KeyedWork(consumer, heir.handle) as work,
    ):
        turn_until(lambda: unread(setup) == 0, work)
    assert heir.numbers(BAD) == [1, 2]
    again = {key for key, _ in heir.done} - {BAD}
    before = [number for key, number in heir.done if key != BAD and number == 0]
    assert before == [], f"what was acknowledged of the batch with {held} came again: {sorted(again)}"


def test_what_fails_too_often_goes_to_the_topic_that_pulsar_s_clients_would_name_so_and_comes_back(
    setup: PulsarSetup, logs: LogClient, servers: Servers
) -> None:
    setup.create(1, "billing")
    handler = RecordingHandler()
    with (
        Producer(HttpSource(servers), logs, setup.topic) as producer,
        StreamConsumer(servers, logs, setup.topic, "billing", "a") as consumer,
        KeyedWork(
            consumer, handler.handle, first_retry_seconds=0.01, max_deliveries=3, dead_letters=logs
        ) as work,
    ):
        for number in range(3):
            for key in KEYS:
                producer.send(b"%d" % number, key)
            if number == 0:
                producer.flush()
                setup.cleave.ok("segments", "split", setup.topic, "0")
        producer.flush()
        turn_until(lambda: unread(setup) == 0 and len(handler.done) == 3 * len(KEYS) - 1, work)
        assert handler.tries == 3
        assert {key: handler.numbers(key) for key in KEYS} == {
            key: [0, 2] if key == BAD else [0, 1, 2] for key in KEYS
        }

        dead = f"persistent://{setup.namespace}/orders-billing-DLQ"
        client = pulsar.Client(setup.access.service_url)
        reader = client.create_reader(dead, pulsar.MessageId.earliest)
        message = reader.read_next(30_000)
        head, _, payload = message.data().partition(b"\n")
        assert (message.partition_key(), payload) == (BAD, b"1")
        assert json.loads(head)["error"] == "ValueError: no account"
        assert not reader.has_message_available()
        client.close()

        handler.is_mended = True
        [listed] = setup.cleave.json("dead-letters", "list", setup.topic, "billing")["items"]
        assert (listed["key"], listed["deliveries"]) == (BAD, 3)
        assert setup.cleave.json("dead-letters", "redrive", setup.topic, "billing")["messages"] == 1
        turn_until(lambda: handler.numbers(BAD) == [0, 2, 1], work)
        assert setup.cleave.json("dead-letters", "list", setup.topic, "billing")["items"] == []
    assert setup.reconcile() == []
