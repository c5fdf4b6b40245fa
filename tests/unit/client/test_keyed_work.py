"""Keyed work whose leader asks for a bucket and withdraws the request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, cast

import pytest

from controller.client.attachments import Attachment
from controller.client.keyed_work import KeyedWork
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.dataplane.log_client import LogMessage, Position
from tests.support.held_logs import EventRecord, HeldLogs
from tests.support.scripted_leader import ScriptedLeader
from tests.support.waiting import wait_until

OWNED = {"segment_id": 0, "bucket_start": 0, "bucket_end": 65_535, "buckets": 1, "backing_topic": "log_0"}


class Leader(ScriptedLeader):
    """A leader of one bucket. `openings` processes have opened the bucket at its first message, and no message has
    stored delivery counts.
    """

    openings = 1

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """As `Servers.ask`."""
        answer = super().ask(method, path, **options)
        return {"openings": self.openings, "messages": []} if path.endswith("/opened") else answer

    def tell(self, version: int, *, release: bool) -> None:
        """Send the assignment; `release`: another consumer waits for the bucket."""
        bucket = OWNED | {"sealed": False, "generation": 1, "release": release}
        document = {"term": 1, "generation": version, "epoch": 0, "origin": 1, "data_plane": "embedded"}
        self.feed().say("assignment", document | {"buckets": [bucket]})


class HesitantConsumer(StreamConsumer):
    """A consumer that runs `before_let_go`, once, before it lets a bucket go."""

    before_let_go: Callable[[], None] | None = None

    def let_go(self, batch: Batch) -> bool:
        """As `StreamConsumer.let_go`."""
        act, self.before_let_go = self.before_let_go, None
        if act is not None:
            act()
            wait_until(lambda: not cast(Attachment, batch.origin).owned.release)
        return super().let_go(batch)


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def logs() -> HeldLogs:
    return HeldLogs(EventRecord(), log_0=2)


@pytest.fixture
def consumer(leader: Leader, logs: HeldLogs) -> Iterator[HesitantConsumer]:
    servers = leader
    with closing(HesitantConsumer(servers, logs, "topic://a/b/c", "s", "me", batch_messages=2)) as consumer:
        yield consumer


def test_messages_of_a_bucket_that_stays_after_all_are_kept(
    consumer: HesitantConsumer, leader: Leader, logs: HeldLogs
) -> None:
    """Their reader does not deliver them again, so later messages would be acknowledged over them."""
    failed, handled = threading.Event(), list[Position]()

    def handle(message: LogMessage) -> None:
        if consumer.before_let_go is not None:
            failed.set()
            raise ValueError("not yet")
        handled.append(message.position)

    consumer.before_let_go = partial(leader.tell, 3, release=False)
    with closing(
        KeyedWork(consumer, handle, threads=1, first_retry_seconds=0.1, longest_retry_seconds=0.1)
    ) as work:
        leader.tell(1, release=False)
        wait_until(lambda: work.turn(0.01) or failed.is_set())
        leader.tell(2, release=True)
        wait_until(lambda: work.turn(0.01) or consumer.before_let_go is None)
        logs.arrive("log_0", 4)
        wait_until(lambda: work.turn(0.01) or (4,) in handled)

    assert handled == [(1,), (2,), (3,), (4,)]


def test_a_bucket_is_reported_closed_once_it_is_released(consumer: HesitantConsumer, leader: Leader) -> None:
    """A bucket that stays after all keeps its number of openings: the process may still end at its first message."""
    leader.openings = 2
    failed = threading.Event()

    def handle(_message: LogMessage) -> None:
        failed.set()
        raise ValueError("not yet")

    consumer.before_let_go = partial(leader.tell, 3, release=False)
    with closing(KeyedWork(consumer, handle, threads=1)) as work:
        leader.tell(1, release=False)
        wait_until(lambda: work.turn(0.01) or failed.is_set())
        leader.tell(2, release=True)
        wait_until(lambda: work.turn(0.01) or consumer.before_let_go is None)
        assert leader.of("closed") == []
        leader.tell(4, release=True)
        wait_until(lambda: work.turn(0.01) or bool(leader.of("closed")))


def test_a_bucket_whose_log_is_queried_stays_with_its_messages(
    consumer: HesitantConsumer, leader: Leader
) -> None:
    """It could not be released now, and its reader would not deliver the dropped messages again."""
    leader.tell(1, release=False)
    batch = wait_until(lambda: consumer.receive(0.01))
    attachment = cast(Attachment, batch.origin)
    leader.tell(2, release=True)
    wait_until(lambda: attachment.owned.release)
    attachment.reserve_query()
    delivered = attachment.delivered

    try:
        assert not consumer.let_go(batch)
        assert attachment.delivered == delivered
    finally:
        attachment.mark_unused()
    assert consumer.let_go(batch)
    assert not consumer.has(batch)
