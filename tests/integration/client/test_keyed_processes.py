"""Keyed work in processes of their own, while the layout changes, every tenth message fails, and one kills its process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.client.dead_letters import reading_dead_letters
from controller.client.history import ProducerHistory, read_history
from controller.client.history_check import check
from controller.client.producer import Producer
from controller.postgres_source import PostgresSource
from controller.services.segment_admin import merging, splitting
from tests.support.bench import TOPIC, Bench
from tests.support.keyed_worker import KILLER, MAX_DELIVERIES, KeyedWorker
from tests.support.traffic import TrafficProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
LETTERS = "dead-letters://acme/shop/orders/billing"
KILLERS_KEY = "key-7"
"""One of the traffic's keys: its other messages are before and behind."""


@pytest.fixture
def start(bench: Bench, leader: str, tmp_path: Path) -> Iterator[Callable[[str], KeyedWorker]]:
    """Start a worker; all are stopped at the end."""
    with ExitStack() as running:
        yield lambda name: running.enter_context(
            KeyedWorker(name, url=bench.url, topic=TOPIC, directory=tmp_path, address=leader)
        )


@pytest.fixture
def producers(bench: Bench, tmp_path: Path) -> Iterator[list[TrafficProcess]]:
    with ExitStack() as running:
        yield [
            running.enter_context(
                TrafficProcess("produce", name, url=bench.url, topic=TOPIC, directory=tmp_path, rate=100)
            )
            for name in ("p1", "p2")
        ]


def send_killer(source: PostgresSource, bench: Bench, history: Path) -> None:
    with ProducerHistory(history) as sent, Producer(source, bench.logs, TOPIC, name="killer") as producer:
        producer.send(KILLER + b" 0", KILLERS_KEY)
        producer.flush()
        sent.sent([(KILLER.decode(), KILLERS_KEY, 0)])


def test_splits_merges_failures_and_a_message_that_kills(
    bench: Bench,
    source: PostgresSource,
    start: Callable[[str], KeyedWorker],
    producers: list[TrafficProcess],
    tmp_path: Path,
) -> None:
    bench.topic_with(segments=1)
    workers = [start("w1"), start("w2")]

    def until(predicate: Callable[[], object], message: str) -> None:
        def turn() -> object:
            for one in workers:
                one.look_after()
            return predicate()

        wait_until(turn, timeout_seconds=120, message=message)

    until(lambda: all(one.count > 100 for one in workers), "both work")
    killer = tmp_path / "killer.history"
    send_killer(source, bench, killer)
    for planner in (splitting(0), splitting(1), merging(4, 2)):
        bench.reshape(planner)
        sent = sum(one.count for one in producers)
        until(lambda sent=sent: sum(one.count for one in producers) > sent + 200, "traffic")  # type: ignore[misc]
    until(lambda: sum(one.lives for one in workers) >= 2 + MAX_DELIVERIES, "it kills")
    for producer in producers:
        producer.stop()
    until(lambda: bench.unread("billing") == 0, "the backlog is read")
    for one in workers:
        one.stop()

    with reading_dead_letters(bench.logs, LETTERS) as reader:
        letters = reader.read(10, timeout_seconds=0.5)
    assert {(letter.key, letter.payload) for letter in letters} == {(KILLERS_KEY.encode(), KILLER + b" 0")}
    assert {letter.origin.deliveries for letter in letters if letter.origin} == {MAX_DELIVERIES}
    histories = [killer, *(one.history for one in (*producers, *workers))]
    verdict = check(read_history(*histories), demand_acknowledged=False)
    assert verdict.is_clean, verdict
    assert verdict.sent == verdict.ended > 700
