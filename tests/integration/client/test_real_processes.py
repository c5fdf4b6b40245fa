"""Producers and consumers as processes of their own, while the layout changes and one of them dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.client.history import read_history
from controller.client.history_check import Kind, Verdict, check
from controller.dataplane.base import LogState
from controller.services.segment_admin import merging, splitting
from tests.support.bench import TOPIC, Bench
from tests.support.traffic import TrafficProcess, advance
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)
Start = Callable[..., TrafficProcess]
RATE = 500
"""Messages a second of a producer. As fast as they go they are ahead of any consumer, and all that is measured is the machine."""


@pytest.fixture
def start(bench: Bench, leader: str, tmp_path: Path) -> Iterator[Start]:
    """Start a producer or consumer; all are stopped at the end. `rate`: see `TrafficProcess`."""
    with ExitStack() as running:

        def start(role: str, name: str, rate: int = RATE) -> TrafficProcess:
            return running.enter_context(
                TrafficProcess(
                    role,
                    name,
                    url=bench.url,
                    topic=TOPIC,
                    directory=tmp_path,
                    subscription="billing",
                    address=leader,
                    rate=rate,
                )
            )

        yield start


def judge(bench: Bench, producers: list[TrafficProcess], consumers: list[TrafficProcess]) -> Verdict:
    """End the producers, let the consumers finish, and compare."""
    for producer in producers:
        producer.stop()
    wait_until(lambda: bench.unread("billing") == 0, timeout_seconds=60, message="the backlog is read")
    for consumer in consumers:
        consumer.stop()
    return check(read_history(*(one.history for one in (*producers, *consumers))), examples=1000)


def test_splits_and_merges_under_traffic_deliver_everything_once_and_in_order(
    bench: Bench, start: Start
) -> None:
    bench.topic_with(segments=1)
    producers = [start("produce", "p1"), start("produce", "p2")]
    consumers = [start("consume", "c1")]
    advance(*producers, *consumers)
    for planner in (splitting(0), splitting(1), merging(4, 2)):
        bench.reshape(planner)
        advance(*producers)
    consumers.append(start("consume", "c2"))
    advance(consumers[1])
    bench.reshape(splitting(3))
    advance(*producers)

    verdict = judge(bench, producers, consumers)

    assert verdict.exactly_once, verdict
    assert verdict.counts[Kind.UNCONFIRMED] == 0
    assert verdict.sent > 0
    assert bench.layout.epoch == 4


def test_a_killed_consumer_costs_duplicates_only(bench: Bench, start: Start) -> None:
    """Its work goes on elsewhere once its row is gone; nothing is lost and no key is out of order."""
    bench.topic_with(segments=4)
    producer = start("produce", "p")
    doomed, heir = start("consume", "c1"), start("consume", "c2")
    advance(producer, doomed, heir)
    doomed.kill()
    bench.reshape(splitting(0))
    bench.execute("DELETE FROM cleave.consumer WHERE name = 'c1'")
    advance(heir)

    verdict = judge(bench, [producer], [doomed, heir])

    assert verdict.in_order_and_complete, verdict


def test_a_killed_producer_loses_nothing_it_had_an_answer_for(bench: Bench, start: Start) -> None:
    bench.topic_with(segments=2)
    doomed, other = start("produce", "p1"), start("produce", "p2")
    consumer = start("consume", "c")
    advance(doomed, other, consumer)
    doomed.kill()
    bench.reshape(merging(0, 1))
    advance(other)

    verdict = judge(bench, [doomed, other], [consumer])

    assert verdict.exactly_once, verdict
    assert {name for name, _, _ in verdict.of(Kind.UNCONFIRMED)} <= {"p1"}


def test_a_paused_producer_does_not_keep_the_fence_from_falling(bench: Bench, start: Start) -> None:
    """Stopped wherever it was, in the middle of an append as well, it holds no lock for longer than a call."""
    bench.topic_with(segments=1)
    producer = start("produce", "p", rate=0)  # always at it
    consumer = start("consume", "c")
    for _ in range(8):
        advance(producer, by=200)
        os.kill(producer.pid, signal.SIGSTOP)
        try:
            fenced = bench.layout.active[0]
            bench.reshape(splitting(fenced.segment_id))
            assert bench.plane.segment_state(bench.log_of(fenced.segment_id)) is LogState.TERMINATED
        finally:
            os.kill(producer.pid, signal.SIGCONT)

    verdict = judge(bench, [producer], [consumer])

    assert verdict.exactly_once, verdict
