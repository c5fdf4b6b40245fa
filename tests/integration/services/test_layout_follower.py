"""Following the layouts of all topics: every change is told, also what happened while nobody listened, and none twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection

from controller.domain.errors import StoreUnavailable
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.services import asset_events, segment_admin
from controller.services.asset_events import LayoutFollower, follower
from controller.store.postgres.clock import database_now
from controller.store.topics import layout_changes
from tests.support.bench import Bench
from tests.support.waiting import wait_until

LISTENER = "follower-test"
Follow = Callable[..., LayoutFollower]


@pytest.fixture
def follow(bench: Bench) -> Iterator[Follow]:
    """A follower that listens."""
    with ExitStack() as listeners:

        def start(since: datetime | None = None) -> LayoutFollower:
            listener = Listener(bench.url, asset_events.CHANNELS, application_name=LISTENER)
            return LayoutFollower(bench.store, listeners.enter_context(listener), since=since)

        yield start


def reported_changes(follower: LayoutFollower, count: int) -> list[tuple[str, int]]:
    """Kind and epoch of so many changes at least, as they were told."""
    found: list[tuple[str, int]] = []

    def enough() -> bool:
        try:
            found.extend((one.kind, one.epoch) for one in follower.wait(0.05))
        except StoreUnavailable:
            return False
        return len(found) >= count

    wait_until(enough, message=f"{count} changes are told")
    return found + [(one.kind, one.epoch) for one in follower.wait(0.0)]


def listening(follower: LayoutFollower) -> LayoutFollower:
    """The follower, which began with its first look and listens since the second."""
    assert (follower.wait(0.0), follower.wait(0.0)) == ([], [])
    return follower


def lose_the_connection(bench: Bench) -> None:
    """As a restart of the server or a break of the network does."""
    bench.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name", name=LISTENER
    )


def test_each_change_is_told_once_and_in_order_from_the_first_look_on(bench: Bench, follow: Follow) -> None:
    bench.topic_with(1)
    following = follow()
    assert following.wait(0.0) == []

    bench.reshape(segment_admin.splitting(0))
    bench.reshape(segment_admin.merging(1, 2))

    assert reported_changes(following, 2) == [("split", 1), ("merge", 2)]


def test_what_happened_since_it_was_there_last_is_told(bench: Bench, follow: Follow) -> None:
    bench.topic_with(1)
    first = follow()
    first.wait(0.0)
    bench.reshape(segment_admin.splitting(0))
    assert reported_changes(first, 1) == [("split", 1)]
    first._listener.close()

    bench.reshape(segment_admin.splitting(1))

    again = reported_changes(follow(since=first.resume_at), 2)
    assert again[-1] == ("split", 2)
    assert ("split", 1) in again, "read once more: what was told may have been lost"


def test_what_happened_while_the_connection_was_lost_is_told_and_nothing_twice(
    bench: Bench, follow: Follow
) -> None:
    bench.topic_with(1)
    following = follow()
    following.wait(0.0)
    bench.reshape(segment_admin.splitting(0))
    assert reported_changes(following, 1) == [("split", 1)]

    lose_the_connection(bench)
    bench.reshape(segment_admin.splitting(1))

    assert reported_changes(following, 1) == [("split", 2)]


def test_a_database_that_goes_away_while_it_is_asked_costs_no_change(
    bench: Bench, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic_with(1)
    following = listening(follow())
    real, failures = layout_changes.events, [StoreUnavailable("away", 0.0)]

    def events(tx: Connection, changes: list[tuple[int, int]]) -> list[layout_changes.LayoutEvent]:
        if changes and failures:
            raise failures.pop()
        return real(tx, changes)

    monkeypatch.setattr(layout_changes, "events", events)
    bench.reshape(segment_admin.splitting(0))

    assert reported_changes(following, 1) == [("split", 1)]
    assert failures == []


def test_a_change_that_is_committed_later_than_it_is_stamped_is_told_all_the_same(
    bench: Bench, follow: Follow
) -> None:
    bench.topic_with(1)
    following = follow()
    following.wait(0.0)
    bench.reshape(segment_admin.splitting(0))
    reported_changes(following, 1)
    bench.execute(
        "INSERT INTO cleave.topic (name, namespace, state, next_segment_id) VALUES ('topic://t/n/late', 't/n', 'creating', 0)"
    )
    bench.execute("""
        WITH asleep AS (SELECT set_config('session_replication_role', 'replica', true))
        INSERT INTO cleave.layout_change (topic_id, epoch, kind, origin, actor, reason, committed_at)
        SELECT topic_id, 7, 'create', 'api', 'a', 'r', (SELECT max(committed_at) - interval '1 us' FROM cleave.layout_change)
          FROM cleave.topic, asleep WHERE name = 'topic://t/n/late'
    """)
    lose_the_connection(bench)

    assert reported_changes(following, 1) == [("create", 7)]


def test_what_happens_after_the_databases_clock_went_back_is_told(bench: Bench, follow: Follow) -> None:
    """By more than the overlap, at a fail-over to another server. The changes before have times in the future."""
    bench.topic_with(1)
    now = bench.store.in_transaction(database_now)
    following = follow(since=now + timedelta(minutes=9))
    bench.reshape(segment_admin.splitting(0))

    assert ("split", 1) in reported_changes(following, 2), "and what was in the last minute"
    assert following.resume_at is not None
    assert following.resume_at < now

    following._newest = now + timedelta(minutes=9)  # as if an earlier change had been told
    lose_the_connection(bench)
    bench.reshape(segment_admin.merging(1, 2))
    assert reported_changes(following, 1) == [("merge", 2)]


def test_a_new_connection_tells_nothing_from_before_the_beginning(bench: Bench, follow: Follow) -> None:
    bench.topic_with(1)
    bench.reshape(segment_admin.splitting(0))
    following = listening(follow())

    lose_the_connection(bench)
    bench.reshape(segment_admin.splitting(1))

    assert reported_changes(following, 1) == [("split", 2)]


def test_what_was_before_it_began_is_told_to_nobody_who_goes_on(bench: Bench, follow: Follow) -> None:
    bench.topic_with(1)
    first = follow()
    first.wait(0.0)
    bench.reshape(segment_admin.splitting(0))

    assert reported_changes(follow(since=first.resume_at), 1) == [("split", 1)]


def test_what_comes_when_it_listens_at_last_is_told_and_once_more_to_who_goes_on(
    bench: Bench, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic_with(1)
    waits = Listener.wait

    def wait(listener: Listener, timeout_seconds: float) -> list[Notification]:
        heard = waits(listener, timeout_seconds)
        if bench.layout.epoch == 0:
            bench.reshape(segment_admin.splitting(0))
        return heard

    monkeypatch.setattr(Listener, "wait", wait)
    first = follow()

    assert reported_changes(first, 1) == [("split", 1)]
    assert reported_changes(follow(since=first.resume_at), 1) == [("split", 1)]


def test_what_is_stamped_before_it_began_and_committed_afterwards_is_told_once_more_to_who_goes_on(
    bench: Bench, follow: Follow
) -> None:
    bench.topic_with(1)
    first = listening(follow())
    began = first.resume_at
    bench.execute(
        "INSERT INTO cleave.topic (name, namespace, state, next_segment_id) VALUES ('topic://t/n/late', 't/n', 'creating', 0)"
    )
    bench.execute(
        """
        WITH asleep AS (SELECT set_config('session_replication_role', 'replica', true)), late AS (
             INSERT INTO cleave.layout_change (topic_id, epoch, kind, origin, actor, reason, committed_at)
             SELECT topic_id, 7, 'create', 'api', 'a', 'r', CAST(:began AS timestamptz) - interval '1 us'
               FROM cleave.topic, asleep WHERE name = 'topic://t/n/late' RETURNING topic_id)
        SELECT pg_notify('cleave_layout', topic_id || '\\:7') FROM late
        """,
        began=began,
    )

    assert reported_changes(first, 1) == [("create", 7)]
    assert reported_changes(follow(since=first.resume_at), 1) == [("create", 7)]


def test_much_that_was_missed_is_read_in_pages(
    bench: Bench, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "PAGE", 2)
    bench.topic_with(1)
    beginning = bench.scalar("SELECT clock_timestamp()")
    for segment_id in (0, 1, 2, 3, 4):
        bench.reshape(segment_admin.splitting(segment_id))

    following = follow(since=beginning)
    assert len(following.wait(0.0)) == 2

    assert [epoch for _, epoch in reported_changes(following, 3)][-1] == 5


@pytest.mark.parametrize("loses", ["the connection", "the process"])
def test_pages_that_are_not_read_yet_are_told_whatever_was_heard_meanwhile(
    bench: Bench, follow: Follow, monkeypatch: pytest.MonkeyPatch, loses: str
) -> None:
    """A live change is far ahead of the pages that are left."""
    monkeypatch.setattr(follower, "PAGE", 2)
    monkeypatch.setattr(follower, "OVERLAP", timedelta(0))
    bench.topic_with(1)
    before = bench.store.in_transaction(database_now)
    for segment_id in range(5):
        bench.reshape(segment_admin.splitting(segment_id))
    following = follow(before)
    found = following.wait(0.0)
    bench.reshape(segment_admin.splitting(5))
    wait_until(lambda: found.extend(more := following.wait(0.0)) or any(one.epoch == 6 for one in more))
    if loses == "the connection":
        lose_the_connection(bench)
    else:
        following = follow(following.resume_at)

    rest = reported_changes(following, 6 - len({one.epoch for one in found}))

    assert {one.epoch for one in found} | {epoch for _, epoch in rest} >= set(range(1, 7))
