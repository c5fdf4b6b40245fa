"""Layout changes told to Airflow: each once, in order, bounded, and never to the harm of the worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controller.domain.errors import Retryable
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.services import asset_events, segment_admin
from controller.services.asset_events import AssetEventPoster
from controller.services.asset_events import poster as poster_module
from controller.store.shards import Shards
from tests.support.bench import TOPIC, Bench
from tests.support.waiting import wait_until

ALL = Shards.of(1, [0])
LISTENER = "asset-events-test"


class RecordingAirflow:
    """An Airflow that takes what it is given, or is away."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.refusals = 0
        self.error: Exception | None = None

    def post(self, partition_key: str, extra: dict[str, Any]) -> bool:
        """Note it, or raise."""
        if self.error is not None:
            self.refusals += 1
            raise self.error
        self.posts.append((partition_key, extra))
        return True

    @property
    def kinds(self) -> list[tuple[str, int]]:
        """Kind and epoch of each event."""
        return [(extra["kind"], extra["epoch"]) for _, extra in self.posts]


Start = Callable[..., AssetEventPoster]


@pytest.fixture
def airflow() -> RecordingAirflow:
    """Nothing posted yet."""
    return RecordingAirflow()


@pytest.fixture
def start(bench: Bench, airflow: RecordingAirflow) -> Iterator[Start]:
    """A poster on a thread, once it listens."""
    started: list[tuple[AssetEventPoster, threading.Thread]] = []

    def start(shards: Shards = ALL) -> AssetEventPoster:
        listener = Listener(bench.url, asset_events.CHANNELS, application_name=LISTENER)
        poster = AssetEventPoster(bench.store, listener, airflow, shards=lambda: shards)
        thread = threading.Thread(target=poster.run)
        thread.start()
        started.append((poster, thread))
        wait_until(
            lambda: bench.scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name AND state = 'idle' AND query <> ''",
                name=LISTENER,
            ),
            message="it listens",
        )
        return poster

    yield start
    for poster, thread in started:
        poster.stop()
        thread.join(30)
        assert not thread.is_alive()


def test_each_layout_change_is_posted_once_with_what_changed(
    bench: Bench, airflow: RecordingAirflow, start: Start
) -> None:
    bench.topic_with(1)
    start()

    split = bench.reshape(segment_admin.splitting(0))
    bench.reshape(segment_admin.merging(1, 2))

    wait_until(lambda: len(airflow.posts) == 2, message="both are posted")
    assert airflow.kinds == [("split", 1), ("merge", 2)]
    key, extra = airflow.posts[0]
    assert key == extra["topic"] == TOPIC
    assert (extra["sealed"], extra["created"]) == ([0], [1, 2])
    assert (extra["operation_id"], extra["actor"], extra["reason"]) == (split.operation_id, "tester", "test")


def test_other_workers_topics_are_left_to_them(bench: Bench, airflow: RecordingAirflow, start: Start) -> None:
    topic_id = bench.topic_with(1)
    start(Shards.of(2, [(topic_id + 1) % 2]))
    mine = start(Shards.of(2, [topic_id % 2]))

    bench.reshape(segment_admin.splitting(0))

    wait_until(lambda: airflow.posts, message="it is posted")
    mine.stop()
    assert airflow.kinds == [("split", 1)]


def test_an_airflow_that_is_away_holds_up_nothing_and_gets_what_waited(
    bench: Bench, airflow: RecordingAirflow, start: Start
) -> None:
    bench.topic_with(1)
    airflow.error = Retryable("away", 0.05)
    start()

    bench.reshape(segment_admin.splitting(0))
    bench.reshape(segment_admin.splitting(1))
    wait_until(lambda: airflow.refusals > 2, message="it is tried again")
    airflow.error = None

    wait_until(lambda: len(airflow.posts) == 2, message="both are posted")
    assert airflow.kinds == [("split", 1), ("split", 2)]


def test_what_nobody_foresaw_ends_no_thread(
    bench: Bench, airflow: RecordingAirflow, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poster_module, "IDLE_SECONDS", 0.05)
    bench.topic_with(1)
    airflow.error = RuntimeError("a bug")
    start()
    bench.reshape(segment_admin.splitting(0))
    wait_until(lambda: airflow.refusals > 0, message="it fails")
    airflow.error = None

    bench.reshape(segment_admin.splitting(1))

    wait_until(lambda: airflow.posts, message="the next one is posted")
    assert airflow.kinds[-1] == ("split", 2)


def test_the_queue_is_bounded_and_keeps_the_youngest(bench: Bench, airflow: RecordingAirflow) -> None:
    poster = AssetEventPoster(
        bench.store, Listener(bench.url, asset_events.CHANNELS), airflow, shards=lambda: ALL
    )
    many = poster_module.PENDING_AT_MOST + 7

    poster._enqueue([Notification("cleave_layout", f"1:{epoch}") for epoch in range(many)])
    poster._enqueue([Notification("cleave_layout", "no topic"), Notification("resync", "")])

    assert next(iter(poster._pending)) == (1, 7)
    assert len(poster._pending) == poster_module.PENDING_AT_MOST
    poster._post_batch()
    assert airflow.posts == [], "what is not in the database is nothing to tell"
