"""Shard leases on a real store: what a worker may believe, for how long, and what its fence lets through."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Connection, text
from structlog.testing import capture_logs

from controller.domain.errors import FencedOut, HeldUp, WorkerNameInUse
from controller.services.worker import shard_leases
from controller.services.worker.schema_version import SchemaVersion
from controller.services.worker.shard_leases import ShardLeases
from controller.store.leases import Lease
from controller.store.postgres import migrations
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from tests.support.bench import Bench
from tests.support.forking import in_child
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

TTL_SECONDS = 60.0
COUNT = 4


@pytest.fixture
def clock() -> ManualClock:
    """The worker's clock, in the test's hand."""
    return ManualClock()


@pytest.fixture
def leases(bench: Bench, clock: ManualClock) -> Iterator[ShardLeases]:
    """A worker's leases, one round done."""
    mine = worker(bench, "w1", clock)
    assert mine.round()
    yield mine
    mine.resign()


def worker(
    bench: Bench,
    name: str,
    clock: ManualClock,
    ttl_seconds: float = TTL_SECONDS,
    incarnation: str | None = None,
    shard_count: int = COUNT,
) -> ShardLeases:
    """Leases of another worker."""
    return ShardLeases(
        bench.store,
        name,
        shard_count=shard_count,
        ttl_seconds=ttl_seconds,
        clock=clock,
        incarnation=incarnation or f"of {name}",
    )


def fence(bench: Bench, leases: ShardLeases, shards: Shards) -> None:
    """As an acting transaction does."""
    with bench.store.transaction() as tx:
        leases.demand_held(tx, shards)


def changes(change: str) -> float:
    """As the metrics have them."""
    return REGISTRY.get_sample_value("cleave_lease_changes_total", {"change": change}) or 0.0


def expire(bench: Bench) -> None:
    """Every lease runs out now."""
    bench.execute("UPDATE cleave.lease SET expires_at = clock_timestamp()")


def test_a_worker_alone_takes_all_and_shares_with_the_next(
    bench: Bench, leases: ShardLeases, clock: ManualClock
) -> None:
    assert leases.held == Shards.of(COUNT, range(COUNT))
    other = worker(bench, "w2", clock)
    before = {change: changes(change) for change in ("got", "lost")}
    assert not other.round(), "nothing is free yet"
    assert leases.round(), "it gives half of them up"
    assert other.round()
    assert {change: changes(change) - count for change, count in before.items()} == {
        "got": COUNT // 2,
        "lost": COUNT // 2,
    }
    assert leases.held.held.isdisjoint(other.held.held)
    assert len(leases.held.held) == len(other.held.held) == COUNT // 2


@pytest.mark.parametrize("other_count", [COUNT // 2, 2 * COUNT])
def test_a_worker_with_another_number_of_shards_waits_for_all_others(
    bench: Bench, leases: ShardLeases, clock: ManualClock, other_count: int
) -> None:
    """Topic 5 would be led by the holder of shard 1 of 4 and by that of shard 5 of 8."""
    other = worker(bench, "w2", clock, shard_count=other_count)
    for _ in range(2):
        with pytest.raises(HeldUp, match=f"another number of shards than {other_count}"):
            other.round()
        assert not leases.round()
    assert leases.held == Shards.of(COUNT, range(COUNT))

    expire(bench)
    assert other.round()

    assert other.held == Shards.of(other_count, range(other_count))
    with pytest.raises(HeldUp, match=f"another number of shards than {COUNT}"):
        leases.round()
    clock.seconds += TTL_SECONDS
    assert leases.held.held == frozenset()
    [health] = bench.rows("SELECT shards, shards_without_worker FROM inspect.health")
    assert health == (other_count, 0)
    other.resign()


def test_the_number_of_shards_lasts_longer_than_the_shards(bench: Bench, leases: ShardLeases) -> None:
    """Another number begins only when nobody trusts a shard of this one."""
    ends = "SELECT expires_at FROM cleave.lease WHERE name = 'shard-count'"
    newest = "SELECT max(expires_at) FROM cleave.lease WHERE starts_with(name, 'shard/')"
    assert bench.scalar(ends) > bench.scalar(newest)


def test_a_round_that_changes_nothing_says_so(leases: ShardLeases) -> None:
    assert not leases.round()


def test_leases_are_not_trusted_beyond_their_time(leases: ShardLeases, clock: ManualClock) -> None:
    clock.seconds += TTL_SECONDS
    assert leases.held.held == frozenset()


def test_trust_is_counted_from_the_question_and_not_from_the_answer(
    bench: Bench, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database counts from when it was asked, at the latest: an answer that took long is worth so much less."""
    asking = shard_leases.leases.renew_or_acquire

    def slowly(
        tx: Connection, name: str, holder: str, ttl_seconds: float, **named: str | None
    ) -> Lease | None:
        if name == "worker/w1":
            clock.seconds += TTL_SECONDS - 1
        return asking(tx, name, holder, ttl_seconds, **named)

    monkeypatch.setattr(shard_leases.leases, "renew_or_acquire", slowly)
    mine = worker(bench, "w1", clock)
    mine.round()
    assert mine.held == Shards.of(COUNT, range(COUNT))

    clock.seconds += 2

    assert mine.held.held == frozenset()
    mine.resign()


def test_who_stands_still_behind_the_fence_is_ended_by_the_server(bench: Bench, leases: ShardLeases) -> None:
    """It holds the rows of its leases, so that nobody could take them over."""
    with bench.store.transaction() as tx:
        leases.demand_held(tx, leases.held)
        limit = tx.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()

    assert limit == f"{TTL_SECONDS / 60:g}min"


def test_trust_that_comes_back_is_told_since_notifications_were_passed_over_meanwhile(
    leases: ShardLeases, clock: ManualClock
) -> None:
    """The database was away for longer than the lease time by this clock, and by its own the leases still run."""
    clock.seconds += TTL_SECONDS
    assert leases.round()
    assert leases.held == Shards.of(COUNT, range(COUNT))


def test_the_fence_lets_through_who_holds_the_shards_it_acts_for(bench: Bench, leases: ShardLeases) -> None:
    fence(bench, leases, leases.held)
    fence(bench, leases, Shards.of(COUNT, [1]))


def test_the_fence_stops_who_acts_for_a_term_that_has_passed(
    bench: Bench, leases: ShardLeases, clock: ManualClock
) -> None:
    """Lost and won again within a moment: what was known of before may be wrong."""
    before = dict(leases.terms)
    expire(bench)
    leases.round()
    assert leases.terms != before
    assert leases.held == Shards.of(COUNT, range(COUNT))

    fence(bench, leases, leases.held)
    with bench.store.transaction() as tx:
        leases.demand_held(tx, leases.held, leases.terms)
        with pytest.raises(FencedOut):
            leases.demand_held(tx, leases.held, before)


def test_the_fence_stops_whose_lease_was_taken(bench: Bench, leases: ShardLeases, clock: ManualClock) -> None:
    shards = leases.held
    expire(bench)
    assert worker(bench, "w2", clock).round()
    with pytest.raises(FencedOut, match="w1 lost a shard lease"):
        fence(bench, leases, shards)


def test_the_fence_stops_who_acts_for_shards_that_a_round_has_just_lost(
    bench: Bench, leases: ShardLeases, clock: ManualClock
) -> None:
    """The loop read its shards before a pause; after it, the leases' own thread was first to see that they are gone."""
    shards = leases.held
    expire(bench)
    worker(bench, "w2", clock).round()
    leases.round()
    with pytest.raises(FencedOut):
        fence(bench, leases, shards)


def test_a_second_worker_of_a_name_ends_when_it_sees_the_first_one_renew(
    bench: Bench, leases: ShardLeases, clock: ManualClock
) -> None:
    second = worker(bench, "w1", clock, incarnation="second")
    with pytest.raises(HeldUp, match="another process holds the lease of worker w1"):
        second.round()
    with pytest.raises(HeldUp):
        second.round()
    leases.round()
    with pytest.raises(WorkerNameInUse, match="give each worker a unique name"):
        second.round()
    assert second.held.held == frozenset()
    assert not leases.round()


def test_a_restarted_worker_has_the_name_when_the_dead_ones_lease_ends(
    bench: Bench, leases: ShardLeases, clock: ManualClock
) -> None:
    restarted = worker(bench, "w1", clock, incarnation="second")
    with pytest.raises(HeldUp):
        restarted.round()
    expire(bench)
    assert restarted.round()
    assert restarted.held == Shards.of(COUNT, range(COUNT))


def test_a_restarted_worker_has_the_name_at_once_when_the_one_before_resigned(
    bench: Bench, leases: ShardLeases, clock: ManualClock
) -> None:
    leases.resign()
    assert worker(bench, "w1", clock, incarnation="second").round()


def test_who_wakes_up_behind_a_restarted_worker_of_its_name_stops_and_takes_nothing_from_it(
    bench: Bench, clock: ManualClock
) -> None:
    paused, stopped = worker(bench, "w1", clock, ttl_seconds=1.5, incarnation="first"), threading.Event()
    paused.round()
    expire(bench)
    restarted = worker(bench, "w1", clock, incarnation="second")
    assert restarted.round()

    thread = threading.Thread(target=paused.run, args=(lambda: None, stopped.set))
    thread.start()
    wait_until(lambda: not restarted.round() and stopped.is_set(), message="it is told to stop")
    thread.join()
    paused.resign()

    assert "another worker runs under the name w1" in str(paused.refused)
    fence(bench, restarted, Shards.of(COUNT, range(COUNT)))


def test_a_lease_that_is_the_workers_by_its_row_alone_is_free_at_once(
    bench: Bench, leases: ShardLeases, clock: ManualClock
) -> None:
    """A fail-over lost the record of the worker that took it; nobody acts under it, and nobody would renew it."""
    other = worker(bench, "w2", clock)
    other.round()
    leases.round()
    assert other.round()
    back = "UPDATE cleave.lease SET holder = 'w1', incarnation = 'of w1', term = 1 WHERE holder = 'w2' AND name LIKE 'shard/%'"
    bench.execute(back)

    leases.round()
    other.round()

    assert len(leases.held.held) == len(other.held.held) == COUNT // 2


def test_leases_whose_newest_renewal_is_lost_are_kept_or_taken_anew_at_once(
    bench: Bench, leases: ShardLeases
) -> None:
    bench.execute("UPDATE cleave.lease SET expires_at = expires_at - interval '30 seconds'")
    leases.round()
    assert set(leases.terms.values()) == {1}

    expire(bench)
    leases.round()
    assert leases.terms == dict.fromkeys(range(COUNT), 2)


def test_leases_of_the_dead_end_in_time_after_the_databases_clock_went_back(
    bench: Bench, leases: ShardLeases, clock: ManualClock
) -> None:
    """The restarted process waits for the lease time and not for the difference of the clocks as well."""
    bench.execute("""
        UPDATE cleave.lease SET renewed_at = renewed_at + interval '1 day', expires_at = expires_at + interval '1 day'
    """)
    restarted = worker(bench, "w1", clock, incarnation="second")

    with pytest.raises(HeldUp):
        restarted.round()

    left = (
        "SELECT extract(epoch FROM max(expires_at) - clock_timestamp()) FROM cleave.lease WHERE holder = 'w1'"
    )
    assert TTL_SECONDS / 2 < bench.scalar(left) <= TTL_SECONDS
    fence(bench, leases, leases.held)


def test_a_failed_round_is_soon_repeated(bench: Bench, clock: ManualClock) -> None:
    """Not at a third of the lease time: the store may answer again in a moment."""
    mine = worker(bench, "w1", clock, ttl_seconds=3600.0)
    asked: list[float] = []

    class Answers(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            asked.append(timeout or 0.0)
            return len(asked) > 3

    mine._stop = Answers()
    store, mine._store = mine._store, Store("postgresql://127.0.0.1:1/nothing")
    mine.run(lambda: None)
    mine._store = store

    assert asked == [
        1200.0,
        shard_leases.RETRY_SECONDS,
        shard_leases.RETRY_SECONDS,
        shard_leases.RETRY_SECONDS,
    ]


def test_a_worker_says_once_that_it_is_older_than_the_schema(bench: Bench, clock: ManualClock) -> None:
    mine = ShardLeases(
        bench.store,
        "w1",
        shard_count=COUNT,
        ttl_seconds=TTL_SECONDS,
        clock=clock,
        schema=SchemaVersion(migrations.newest_known()),
    )
    with capture_logs() as lines:
        mine.round()
        bench.execute("INSERT INTO cleave.migration (name, checksum) VALUES ('9999_of_the_future', '')")
        mine.round()
        mine.round()

    said = [line for line in lines if line["event"].startswith("worker older than the schema")]
    assert [line["applied"] for line in said] == ["9999_of_the_future"]
    kept = "SELECT schema_version FROM inspect.leases WHERE name = 'worker/w1'"
    assert bench.scalar(kept) == migrations.newest_known()
    mine.resign()


def test_a_worker_that_resigns_leaves_everything_to_the_others(
    bench: Bench, leases: ShardLeases, clock: ManualClock
) -> None:
    leases.resign()
    other = worker(bench, "w2", clock)
    other.round()
    assert other.held == Shards.of(COUNT, range(COUNT))
    assert leases.held.held == frozenset()


def test_rounds_go_on_after_an_error_that_nobody_expected(bench: Bench, clock: ManualClock) -> None:
    """A thread that ended would leave a worker alive that never holds a shard again."""
    mine = worker(bench, "w1", clock, ttl_seconds=1.0)
    told = threading.Event()

    def fail() -> None:
        told.set()
        raise RuntimeError("the loop's listener is gone")

    def expiry() -> datetime:
        expires_at = bench.scalar("SELECT max(expires_at) FROM cleave.lease WHERE holder = 'w1'")
        assert isinstance(expires_at, datetime)
        return expires_at

    thread = threading.Thread(target=mine.run, args=(fail,))
    thread.start()
    try:
        assert told.wait(30)
        seen = expiry()
        wait_until(lambda: expiry() > seen, message="a later round renewed the leases")
    finally:
        mine.stop()
        thread.join()
        mine.resign()


def test_each_shard_that_is_got_lost_or_given_back_is_told(bench: Bench, clock: ManualClock) -> None:
    mine = worker(bench, "w1", clock)
    with capture_logs() as lines:
        mine.round()
        mine.round()
        expire(bench)
        other = worker(bench, "w2", clock)
        other.round()
        mine.round()
        other.resign()

    def told(event: str, name: str) -> list[tuple[int, int]]:
        return [
            (line["shard"], line["term"])
            for line in lines
            if line["event"] == event and line["worker"] == name
        ]

    assert told("shard acquired", "w1")[:COUNT] == [(shard, 1) for shard in range(COUNT)]
    assert told("shard lost", "w1") == [
        (shard, 1) for shard in range(COUNT) if (shard, 2) in told("shard acquired", "w2")
    ]
    assert told("shard resigned", "w2") == told("shard acquired", "w2")
    mine.resign()


def test_a_forked_child_gives_back_no_lease_of_its_parents(bench: Bench, leases: ShardLeases) -> None:
    assert in_child(leases.resign) is None

    with bench.store.transaction() as tx:
        leases.demand_held(tx, Shards.of(COUNT, leases.terms))
    assert len(leases.terms) == COUNT
