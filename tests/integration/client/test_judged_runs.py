"""Small runs on real logs, each led past one of the dangers of ordered consumption, and judged by the history checker alone.

Mutants in `tests/mutants` remove guards and show that the verdict changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.client.history import history_files, read_history
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.domain.seek_target import EARLIEST
from controller.postgres_source import PostgresSource
from controller.services import subscription_admin
from controller.services.segment_admin import rebucketing, splitting
from controller.store.topics import subscriptions
from tests.support.bench import TOPIC, Bench
from tests.support.judged_run import KEYS, JudgedConsumer, JudgedRun
from tests.support.waiting import wait_until

BUCKETS = 4
OWNED = "SELECT jsonb_agg(jsonb_build_object('segment_id', segment_id, 'bucket_start', bucket_start, 'generation', generation)) FROM cleave.bucket_owner"


@pytest.fixture
def run(bench: Bench, servers: Servers, source: PostgresSource, tmp_path: Path) -> Iterator[JudgedRun]:
    """On a topic of one segment with four buckets."""
    bench.topic_with(segments=1)
    producer = Producer(source, bench.logs, TOPIC)
    run = JudgedRun(servers, bench.logs, TOPIC, producer, tmp_path, lambda: bench.unread("billing"))
    yield run
    run.close()
    producer.close()


def have_all_in_hand(run: JudgedRun, *consumers: JudgedConsumer) -> None:
    """A message of each key, begun."""
    run.take_until(lambda: sum(one.messages_in_hand for one in consumers) >= len(KEYS))


def have_buckets(run: JudgedRun, *consumers: JudgedConsumer, counts: tuple[int, ...]) -> None:
    """Until each reads so many."""
    run.work_off(lambda: sorted(len(one.consumer.buckets) for one in consumers) == sorted(counts))


def seek_back(bench: Bench, run: JudgedRun) -> None:
    """To the beginning."""
    with run.seek():
        intent = subscription_admin.seek_subscription(
            bench.store, TOPIC, "billing", EARLIEST, bench.request(), release_seconds=60.0
        )
        operation_id = intent.operation.operation_id

        def ended() -> bool:
            bench.run_once(operation_id)
            return not bench.operation(operation_id).state.is_live

        run.work_off(ended)


def test_a_bucket_goes_to_a_newcomer_when_what_is_in_hand_is_done(run: JudgedRun) -> None:
    a = run.join("a")
    run.send(0)
    have_all_in_hand(run, a)
    b = run.join("b")
    run.take_until(lambda: len(a.consumer.buckets) < BUCKETS)
    run.look_around()
    a.finish()
    run.work_off()
    have_buckets(run, a, b, counts=(2, 2))
    run.send(1)
    run.work_off()

    verdict = run.judge()

    assert verdict.exactly_once, verdict


def test_children_wait_for_what_is_in_hand_of_their_parent(bench: Bench, run: JudgedRun) -> None:
    a, b = run.join("a"), run.join("b")
    have_buckets(run, a, b, counts=(2, 2))
    run.send(0)
    have_all_in_hand(run, a, b)
    bench.reshape(splitting(0))
    run.send(1)
    run.take_until(lambda: {one.segment_id for one in a.consumer.why()} == {0, 1, 2})
    run.look_around()
    a.finish()
    b.finish()
    run.work_off()

    verdict = run.judge()

    assert verdict.exactly_once, verdict


def test_a_sealed_backlog_is_drained_by_four_side_by_side(
    bench: Bench, run: JudgedRun, tmp_path: Path
) -> None:
    """Though there is a segment for each of them: three have the other half of the ring."""
    bench.reshape(splitting(0))
    bench.reshape(rebucketing(1, BUCKETS))
    bench.reshape(splitting(2, parts=3))
    backlog, *others = (segment.segment_id for segment in bench.layout.active)
    with bench.store.transaction() as tx:
        subscriptions.set_sharing(tx, bench.topic_id, "billing", parents_block=None, drain_consumers=4)
    members = [run.join(name) for name in "abcd"]
    run.work_off(lambda: {one.consumer.segment_ids for one in members} == {(n,) for n in (backlog, *others)})
    for number in range(5):
        run.send(number)
    bench.reshape(splitting(backlog))
    run.send(5)
    wait_until(  # nobody has read of it
        lambda: all(backlog in one.consumer.segment_ids for one in members), message="each has a part of it"
    )
    run.work_off()

    verdict = run.judge()

    assert verdict.exactly_once, verdict
    records = read_history(*history_files([tmp_path]))
    assert {one.consumer for one in records if one.segment == str(backlog)} == set("abcd")


def test_what_somebody_had_in_hand_who_leaves_goes_to_the_others_at_once(run: JudgedRun) -> None:
    a, b = run.join("a"), run.join("b")
    have_buckets(run, a, b, counts=(2, 2))
    run.send(0)
    have_all_in_hand(run, a, b)
    run.leave(b)
    a.finish()
    run.work_off()
    run.send(1)
    run.work_off()

    verdict = run.judge()

    assert verdict.is_clean, verdict
    assert verdict.redelivered


def test_what_is_acknowledged_after_a_seek_is_acknowledged(bench: Bench, run: JudgedRun) -> None:
    """Whatever was acknowledged before it, and further on."""
    a = run.join("a")
    run.send(0)
    run.send(1)
    run.work_off()
    seek_back(bench, run)
    run.work_off()
    b = run.join("b")
    have_buckets(run, a, b, counts=(2, 2))
    run.send(2)
    run.work_off()

    verdict = run.judge()

    assert verdict.is_clean, verdict
    assert verdict.redelivered == 2 * len(KEYS)


def test_a_word_of_an_earlier_ownership_takes_nothing_away(bench: Bench, run: JudgedRun) -> None:
    """One that it has let go of a bucket, which arrives when it owns it again."""
    a = run.join("a")
    have_buckets(run, a, counts=(BUCKETS,))
    before = bench.scalar(OWNED)
    b = run.join("b")
    have_buckets(run, a, b, counts=(2, 2))
    run.leave(b)
    have_buckets(run, a, counts=(BUCKETS,))
    run.send(0)
    have_all_in_hand(run, a)
    now = bench.scalar(OWNED)
    a.consumer.ask("released", {"buckets": [one for one in before if one not in now]})
    run.look_around()
    a.finish()
    run.work_off()

    verdict = run.judge()

    assert verdict.exactly_once, verdict
