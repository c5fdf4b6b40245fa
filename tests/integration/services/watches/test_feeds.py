"""Watches of layouts and of topics on a real database: who is told what, how often, and when."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from controller.clock import SystemClock
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.services.segment_admin import splitting
from controller.services.topic_admin import create_topic, delete_topic
from controller.services.watches import feeds, layout_feed, topic_feed
from controller.services.watches.feeds import Feed, Feeds
from controller.services.watches.layout_feed import LayoutFeed
from controller.services.watches.topic_feed import Names, TopicFeed, TopicFilter
from tests.support.bench import TOPIC, Bench
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until


class RecordingWatcher:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.pushed: list[Any] = []
        self.ended: list[str] = []

    def push(self, pushed: Any) -> None:
        self.pushed.append(pushed)

    def end(self, reason: str) -> None:
        self.ended.append(reason)

    @property
    def epochs(self) -> list[int]:
        """Of the layouts."""
        return [one.published.layout.epoch for one in self.pushed]


@contextmanager
def telling(listener: Listener, *fed: Feed[Any, Any]) -> Iterator[None]:
    """The feeds' own thread and connection."""
    loop = Feeds(listener, fed, clock=SystemClock())
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield
    finally:
        loop.stop()
        thread.join()


@pytest.fixture
def layouts(bench: Bench) -> LayoutFeed:
    """Of layouts; its thread is the test."""
    return LayoutFeed(bench.store, lambda: None, shard_count=16, clock=SystemClock())


def changed(feed: LayoutFeed, topic_id: int) -> None:
    feed.notice([Notification(layout_feed.LAYOUTS, f"{topic_id}:1")], is_sweep=False)
    feed.notify()


def test_a_newcomer_is_told_the_present_layout_and_nobody_else_anything(
    bench: Bench, layouts: LayoutFeed
) -> None:
    topic_id = bench.topic_with(segments=1)
    first, second = RecordingWatcher(), RecordingWatcher()
    layouts.watch(topic_id, first)
    layouts.notify()
    layouts.watch(topic_id, second)
    layouts.notify()

    assert (first.epochs, second.epochs) == ([0], [0])
    changed(layouts, topic_id)
    assert (first.epochs, second.epochs) == ([0], [0])


def test_a_burst_of_changes_is_read_once(bench: Bench, layouts: LayoutFeed) -> None:
    topic_id = bench.topic_with(segments=1)
    told = RecordingWatcher()
    layouts.watch(topic_id, told)
    layouts.notify()
    for _ in range(3):
        bench.reshape(splitting(bench.layout.active[0].segment_id))

    changed(layouts, topic_id)

    assert told.epochs == [0, 3]


def test_whoever_has_gone_is_told_nothing_and_leaves_nothing(bench: Bench, layouts: LayoutFeed) -> None:
    topic_id = bench.topic_with(segments=1)
    gone = RecordingWatcher()
    layouts.watch(topic_id, gone)
    layouts.forget(topic_id, gone)
    layouts.notify()
    changed(layouts, topic_id)

    assert gone.pushed == []
    assert not any((layouts._watchers, layouts._new, layouts._pushed))


def test_watchers_of_a_deleted_topic_are_sent_away(bench: Bench, layouts: LayoutFeed) -> None:
    topic_id = bench.topic_with(segments=1)
    told = RecordingWatcher()
    layouts.watch(topic_id, told)
    layouts.notify()
    bench.finish(delete_topic(bench.store, TOPIC, bench.request()))

    changed(layouts, topic_id)

    assert told.ended == ["gone"]


def test_a_topic_that_is_being_created_keeps_no_other_from_its_watchers(
    bench: Bench, layouts: LayoutFeed
) -> None:
    live, told = bench.topic_with(segments=1), RecordingWatcher()
    intent = create_topic(bench.store, bench.planes, f"{TOPIC}-late", bench.request())
    early = RecordingWatcher()
    layouts.watch(intent.operation.topic_id, early)
    layouts.watch(live, told)

    layouts.notify()

    assert (told.epochs, early.pushed, early.ended) == ([0], [], [])
    assert layouts.due_in_seconds == math.inf, "the commit of the creation is notified"


def test_watchers_of_a_topic_that_is_being_created_are_told_its_first_layout(bench: Bench) -> None:
    told = RecordingWatcher()
    intent = create_topic(bench.store, bench.planes, TOPIC, bench.request())
    with listening(bench) as layouts:
        layouts.watch(intent.operation.topic_id, told)
        wait_until(lambda: layouts.due_in_seconds == math.inf, message="it is read too early")
        bench.finish(intent)
        wait_until(lambda: told.epochs == [0])


def test_many_that_open_and_close_leave_nothing_behind(bench: Bench, layouts: LayoutFeed) -> None:
    topic_id = bench.topic_with(segments=1)
    for _ in range(10_000):
        watcher = RecordingWatcher()
        layouts.watch(topic_id, watcher)
        layouts.forget(topic_id, watcher)

    assert not any((layouts._watchers, layouts._new, layouts._pushed))


@pytest.fixture
def topics(bench: Bench) -> Iterator[TopicFeed]:
    """Of topics, with the feeds' own thread and connection."""
    listener = Listener(bench.url, (topic_feed.CHANNEL,), application_name="cleave-watches")
    feed = TopicFeed(bench.store, listener.interrupt, clock=SystemClock())
    with telling(listener, feed):
        yield feed


def last(told: RecordingWatcher) -> Names | None:
    return told.pushed[-1] if told.pushed else None


def test_topics_are_told_of_when_they_become_live_change_their_properties_and_go(
    bench: Bench, topics: TopicFeed
) -> None:
    every, billing, elsewhere = RecordingWatcher(), RecordingWatcher(), RecordingWatcher()
    topics.watch(TopicFilter("acme/shop"), every)
    topics.watch(TopicFilter.of("acme/shop", ["team=billing"]), billing)
    topics.watch(TopicFilter("acme/other"), elsewhere)
    wait_until(lambda: last(every) == last(billing) == last(elsewhere) == ())

    bench.create(properties={"team": "billing", "tier": "1"})
    wait_until(lambda: last(every) == last(billing) == (TOPIC,), message="it is live")
    bench.execute(
        """UPDATE cleave.topic SET properties = '{"team": "orders"}', row_version = row_version + 1"""
    )
    wait_until(lambda: last(billing) == (), message="it is another team's")
    bench.finish(delete_topic(bench.store, TOPIC, bench.request()))
    wait_until(lambda: last(every) == (), message="it is gone")

    assert [names for names in elsewhere.pushed if names] == []


def test_a_filter_that_the_database_refuses_takes_no_turn_from_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "log", Mock())
    feed, told = TopicFeed(bench.store, lambda: None, clock=SystemClock()), RecordingWatcher()
    feed.watch(TopicFilter("acme/shop", (("a", "\0"),)), RecordingWatcher())
    feed.watch(TopicFilter("acme/shop"), told)

    feed.notify()

    assert last(told) == ()
    assert feed.due_in_seconds == math.inf, "the next sweep reads the filter again"


def test_a_listening_connection_that_is_cut_costs_no_change(bench: Bench, topics: TopicFeed) -> None:
    told = RecordingWatcher()
    topics.watch(TopicFilter("acme/shop"), told)
    wait_until(lambda: last(told) == ())
    bench.execute("ALTER TABLE cleave.topic DISABLE TRIGGER topic_of_namespace")  # as if nobody had listened
    bench.create()
    bench.execute("ALTER TABLE cleave.topic ENABLE TRIGGER topic_of_namespace")
    assert bench.scalar(CUT) >= 1

    wait_until(lambda: last(told) == (TOPIC,), message="all is read again")


LED = """
    INSERT INTO cleave.lease (name, holder, address, expires_at)
    VALUES (:name, 'w', NULL, 'infinity'), ('worker/w', 'w', 'http://w:1', 'infinity')
"""
CUT = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'cleave-watches'"
)


@contextmanager
def listening(bench: Bench) -> Iterator[LayoutFeed]:
    """A feed of layouts with the feeds' own thread and connection."""
    listener = Listener(bench.url, layout_feed.CHANNELS, application_name="cleave-watches")
    feed = LayoutFeed(bench.store, listener.interrupt, shard_count=16, clock=SystemClock())
    with telling(listener, feed):
        yield feed


@contextmanager
def unheard(bench: Bench, table: str, trigger: str) -> Iterator[None]:
    """What happens meanwhile is notified of to nobody, as while the listening connection is away."""
    bench.execute(f"ALTER TABLE cleave.{table} DISABLE TRIGGER {trigger}")
    yield
    bench.execute(f"ALTER TABLE cleave.{table} ENABLE TRIGGER {trigger}")


def test_a_listening_connection_that_is_cut_costs_no_epoch_and_no_leader(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "SWEEP_SECONDS", 3600.0)
    topic_id, told = bench.topic_with(segments=1), RecordingWatcher()
    with listening(bench) as layouts:
        layouts.watch(topic_id, told)
        wait_until(lambda: told.epochs == [0])

        with unheard(bench, "layout_change", "layout_change_insert"):
            bench.reshape(splitting(0))
        assert bench.scalar(CUT) >= 1
        wait_until(lambda: told.epochs == [0, 1], message="all is read again")

        with unheard(bench, "lease", "lease_of_first_leader"):
            bench.execute(LED, name=f"shard/{topic_id % 16}")
        assert bench.scalar(CUT) >= 1
        wait_until(lambda: told.pushed[-1].leader == "http://w:1", message="who leads is read again")


def test_everybody_is_told_when_the_feeds_stop(bench: Bench) -> None:
    listener = Listener(bench.url, (topic_feed.CHANNEL,))
    layouts = LayoutFeed(bench.store, listener.interrupt, shard_count=16, clock=SystemClock())
    topics = TopicFeed(bench.store, listener.interrupt, clock=SystemClock())
    told, also = RecordingWatcher(), RecordingWatcher()
    topic_id = bench.topic_with(segments=1)
    layouts.watch(topic_id, told)
    topics.watch(TopicFilter("acme/shop"), also)
    with telling(listener, layouts, topics):
        wait_until(lambda: told.pushed and also.pushed)

    assert told.ended == also.ended == ["moved"]


def test_changes_that_follow_one_another_are_gathered(bench: Bench) -> None:
    """Time is the test's: what is noted within the gathering time is read once."""
    clock = ManualClock()
    feed = TopicFeed(bench.store, lambda: None, clock=clock)
    told = RecordingWatcher()
    feed.watch(TopicFilter("acme/shop"), told)
    feed.notify()
    bench.create()
    rung = [Notification(topic_feed.CHANNEL, "acme/shop")]
    feed.notice(rung, is_sweep=False)
    clock.seconds += 0.8 * topic_feed.GATHER_SECONDS
    feed.notice(rung, is_sweep=False)
    feed.notify()
    assert told.pushed == [()]
    assert feed.due_in_seconds == pytest.approx(0.2 * topic_feed.GATHER_SECONDS)

    clock.seconds += 0.3 * topic_feed.GATHER_SECONDS  # the first one's time, however many followed
    feed.notify()

    assert told.pushed == [(), (TOPIC,)]
