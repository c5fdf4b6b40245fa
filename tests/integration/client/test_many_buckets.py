"""A segment of so many buckets that they are owned in runs: on real logs, told by a real leader."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from controller.client.checkpoint_group import CheckpointGroupConsumer
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.domain.entry_buckets import MOST_UNITS, bucket_ranges, equal_splits, ownership_units
from controller.domain.key_hash import key_hash
from controller.services.segment_admin import rebucketing
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.judged_run import KEYS, JudgedRun, two_come_and_the_first_goes
from tests.support.waiting import wait_until

BUCKETS = 256
SPLITS = equal_splits(BUCKETS)
OWNED = "SELECT array_agg(bucket_start || '-' || bucket_end ORDER BY bucket_start) FROM cleave.bucket_owner"
RUNS = [f"{run.start}-{run.end}" for run in ownership_units(SPLITS)]


@pytest.fixture
def topic(bench: Bench) -> None:
    """A topic whose one segment has 256 buckets; its subscriptions are yet to be made."""
    bench.create()
    bench.reshape(rebucketing(0, BUCKETS))


@pytest.fixture
def run(bench: Bench, servers: Servers, producer: Producer, tmp_path: Path) -> Iterator[JudgedRun]:
    """Of its subscription."""
    bench.subscribe("billing")
    run = JudgedRun(servers, bench.logs, TOPIC, producer, tmp_path, lambda: bench.unread("billing"))
    yield run
    run.close()


def test_runs_change_hands_with_each_key_in_order(bench: Bench, run: JudgedRun) -> None:
    """One reads alone, two come while messages do, and the first goes with some in hand."""
    a = run.join("a")
    run.send(0)
    run.take_until(lambda: a.messages_in_hand >= len(KEYS))
    assert bench.scalar(OWNED) == RUNS
    assert len(a.consumer.buckets) == MOST_UNITS
    two_come_and_the_first_goes(run, a, lambda all_of_them: sorted(map(len, all_of_them)) == [21, 21, 22])
    assert bench.scalar(OWNED) == RUNS


def test_owners_of_single_buckets_let_go_of_them_before_the_runs_are_given_out(
    bench: Bench, run: JudgedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a leader of before has left them; one of those owners is gone, and the other works on what it has in hand."""
    with monkeypatch.context() as before:
        before.setattr("controller.domain.entry_buckets.ownership_units", bucket_ranges)
        a, b = run.join("a"), run.join("b")
        run.send(0)
        run.work_off(lambda: len(a.consumer.buckets) == len(b.consumer.buckets) == BUCKETS // 2)
        run.send(1)
        run.take_until(lambda: a.messages_in_hand > 0)
    run.send(2)
    run.leave(b)
    run.look_around()
    owned = bench.rows("SELECT bucket_start, bucket_end FROM cleave.bucket_owner ORDER BY bucket_start")
    assert all(one[1] < other[0] for one, other in pairwise(owned))
    assert any(f"{start}-{end}" not in RUNS for start, end in owned)
    a.finish()
    run.work_off(lambda: len(a.consumer.buckets) == MOST_UNITS)
    run.work_off()

    verdict = run.judge()

    assert verdict.is_clean, verdict
    assert bench.scalar(OWNED) == RUNS


def test_each_bucket_of_a_run_is_shown_with_its_owner(
    bench: Bench, servers: Servers, producer: Producer
) -> None:
    """By its consumers, by the leader and in the database; and counted by itself."""
    # consumers that are paused would not read the sealed segment to its end
    bench.subscribe("billing", from_latest=True)
    for key in KEYS:
        producer.send(b"0", key)
    producer.flush()
    held = {str(bucket): 0 for bucket in bucket_ranges(SPLITS)}
    for key in KEYS:
        place = key_hash(key).bucket_hash
        held[next(str(one) for one in bucket_ranges(SPLITS) if one.contains(place))] += 1
    with (
        StreamConsumer(servers, bench.logs, TOPIC, "billing", "a") as a,
        StreamConsumer(servers, bench.logs, TOPIC, "billing", "b") as b,
    ):
        a.pause()
        b.pause()

        def turn() -> bool:
            assert a.receive(0.02) is b.receive(0.02) is None
            return len(a.buckets) == len(b.buckets) == MOST_UNITS // 2

        wait_until(turn, message="half of the runs each")
        shown = {status.bucket: (status.reason, status.holders) for status in a.why()}
        lag = {one.bucket: (one.owners, one.messages) for one in a.lag()}
        rows = dict(bench.rows("SELECT bucket, owner FROM inspect.buckets"))

        owners = {
            str(bucket): one.name
            for one in (a, b)
            for _, run in one.buckets
            for bucket in bucket_ranges(SPLITS)
            if run.overlaps(bucket)
        }
    assert rows == owners
    assert lag == {bucket: ((owners[bucket],), count) for bucket, count in held.items()}
    assert shown.keys() == owners.keys()
    assert {shown[bucket] for bucket, owner in owners.items() if owner == "a"} == {("paused", ())}
    assert all(shown[bucket][1] == ("b",) for bucket, owner in owners.items() if owner == "b")


def test_a_member_of_a_group_reads_a_segment_of_many_buckets(
    bench: Bench, servers: Servers, producer: Producer
) -> None:
    """The sealed segment before it is empty, so no checkpoint has to be kept for it."""
    bench.subscribe("billing", kind=SubscriptionKind.CHECKPOINT)
    producer.send(b"0", "key")
    producer.flush()
    with CheckpointGroupConsumer(servers, bench.logs, TOPIC, "billing", "a", lambda: ()) as member:
        batch = wait_until(lambda: member.receive(0.1), message="the message")
        assert [message.payload for message in batch.messages] == [b"0"]
        assert bench.scalar(OWNED) == RUNS
