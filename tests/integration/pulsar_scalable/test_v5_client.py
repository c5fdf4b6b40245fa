"""Pulsar's own Java client produces and consumes on a topic that Cleave splits and merges all the while."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.client.history import read_history
from controller.client.history_check import Kind, Verdict, check
from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.domain.observed_consumers import ObservedConsumer
from controller.domain.operation import OperationState
from controller.services import segment_admin
from controller.store.postgres.engine import Store
from controller.store.topics import layouts, topics
from tests.integration.pulsar_scalable.conftest import PLANE, Finish, request
from tests.support.brokers import SharedBroker
from tests.support.waiting import wait_until

RATE = 200


@contextmanager
def java_client(broker: SharedBroker, topic: str, home: Path) -> Iterator[subprocess.Popen[str]]:
    """The client at work on the topic; killed at the end."""
    command = [
        sys.executable,
        "-m",
        "tests.support.v5_client",
        broker.service_url,
        topic,
        "s",
        str(home),
        str(RATE),
    ]
    with (home / "client.log").open("w") as log:
        client = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n", (home / "client.log").read_text()[-2000:]
        yield client
    finally:
        client.kill()
        client.communicate()


def next_planner(store: Store, topic: str) -> segment_admin.Planner:
    """Grow to four segments, then join the first two, and so on: every part of the ring is cut and joined."""
    with store.transaction() as tx:
        active = layouts.load_layout(tx, topics.find_topic(tx, topic).topic_id).active
    if len(active) < 4:
        widest = max(active, key=lambda segment: segment.hash_range.width)
        return segment_admin.splitting(widest.segment_id)
    return segment_admin.merging(active[1].segment_id, active[2].segment_id)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("operations", [12, pytest.param(200, marks=pytest.mark.chaos)])
def test_nothing_is_lost_or_out_of_key_order(
    store: Store,
    keeper: PulsarScalableDataPlane,
    attached: str,
    finish: Finish,
    pulsar5_broker: SharedBroker,
    tmp_path: Path,
    operations: int,
) -> None:
    with java_client(pulsar5_broker, attached, tmp_path) as client:
        assert [(one.subscription, one.subscription_type) for one in counted(keeper, attached)] == [
            ("s", "Exclusive")
        ]
        for _ in range(operations):
            intent = segment_admin.submit(
                store, {PLANE: keeper}, attached, next_planner(store, attached), request("go on")
            )
            assert finish(intent) is OperationState.DONE
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write("quiet\n")
        client.stdin.flush()
        assert client.stdout.readline() == "quiet\n"
        wait_until(
            lambda: not verdict_on(tmp_path).counts[Kind.LOST],
            timeout_seconds=180,
            message="everything sent is delivered",
        )
    verdict = verdict_on(tmp_path)
    assert verdict.in_order_and_complete, str(verdict)
    assert verdict.sent > 0, (tmp_path / "client.log").read_text()[-2000:]
    with store.transaction() as tx:
        assert topics.find_topic(tx, attached).epoch >= operations


def counted(keeper: PulsarScalableDataPlane, topic: str) -> list[ObservedConsumer]:
    """The broker's own count of who consumes, over all logs of the topic."""
    return [one for attached in keeper.consumers(keeper.list_segments(topic)).values() for one in attached]


def verdict_on(home: Path) -> Verdict:
    """Of what the client has written so far."""
    return check(read_history(home / "sent", home / "delivered"))
