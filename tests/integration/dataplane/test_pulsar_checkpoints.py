"""Checkpoint consumers of applications on a real broker: through a split and a merge, and past what the broker deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointConsumer, Start
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.dataplane.log_client import LogClient, OutgoingMessage
from controller.domain.errors import DataGone
from tests.integration.dataplane.pulsar_setup import PulsarSetup
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(30)]


def take(consumer: CheckpointConsumer, count: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    taken = 0

    def complete() -> bool:
        nonlocal taken
        batch = consumer.receive(0.5)
        for message in batch.messages if batch else ():
            found.setdefault(str(message.key and message.key.decode()), []).append(int(message.payload))
            taken += 1
        return taken >= count

    wait_until(complete, timeout_seconds=60, message=f"{count} messages")
    assert taken == count
    return found


def test_every_key_keeps_its_order_through_a_split_and_a_merge_and_restores(
    setup: PulsarSetup, logs: LogClient, servers: Servers
) -> None:
    setup.create(1, "billing")
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    with Producer(HttpSource(servers), logs, setup.topic) as producer:
        with CheckpointConsumer(servers, logs, setup.topic, Start.LATEST) as consumer:
            kept = consumer.checkpoint().to_bytes()
        setup.send_rounds(producer, KEYS, 12, split_after=3, merge_after=7)
        for part in (100, 7, 53, 200):
            with CheckpointConsumer(servers, logs, setup.topic, kept, batch_messages=part) as consumer:
                places = Checkpoint.from_bytes(kept).positions
                assert {i: consumer.checkpoint().positions[i] for i in places} == places
                batch = wait_until(lambda consumer=consumer: consumer.receive(0.5), message="a batch")  # type: ignore[misc]
                for message in batch.messages:
                    found[str(message.key and message.key.decode())].append(int(message.payload))
                kept = consumer.checkpoint().to_bytes()
        with CheckpointConsumer(servers, logs, setup.topic, kept) as consumer:
            for key, rest in take(consumer, 12 * len(KEYS) - sum(map(len, found.values()))).items():
                found[key] += rest
            wait_until(lambda: consumer.receive(0.1) is None and consumer.checkpoint().done == {0, 1, 2})

    assert found == {key: list(range(12)) for key in KEYS}


def test_a_place_whose_ledger_the_broker_does_not_have_is_told(
    setup: PulsarSetup, logs: LogClient, servers: Servers
) -> None:
    """Without a subscription or retention a broker deletes whole ledgers, and would give the next one without a word."""
    setup.create(1)
    logs.append(setup.log_of(0), [OutgoingMessage(b"0", b"k")], producer="p", sequence=1)
    with CheckpointConsumer(servers, logs, setup.topic, Start.EARLIEST) as consumer:
        kept = consumer.checkpoint()
    at = kept.positions[0]
    assert at is not None
    deleted = replace(kept, positions={0: (at[0] - 1, *at[1:])})

    with (
        CheckpointConsumer(servers, logs, setup.topic, deleted) as consumer,
        pytest.raises(DataGone, match="the broker has deleted"),
    ):
        wait_until(lambda: consumer.receive(0.5) and False)
