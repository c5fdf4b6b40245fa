"""Buckets stay with their owners while a decision or a reshape may replace their segments, for a bounded time."""

from __future__ import annotations

import pytest

from controller.domain.seek_target import EARLIEST
from controller.services import subscription_admin
from controller.services.consumer_sessions.requests import Register
from controller.services.consumer_sessions.settlement import (
    DEFERRED_MOVES_CHECK_SECONDS,
    ConnectionState,
    Settlement,
    settle,
)
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.services.segment_admin import splitting
from controller.store.topics.bucket_owners import SubscriptionKey
from tests.support.bench import Bench
from tests.support.led_topic import LedTopic

TIMING = ConsumerTiming(10.0)


class Consumers:
    """The consumers of a topic with two segments, of which `first` owns both."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._key = SubscriptionKey(bench.topic_with(segments=2), "billing")
        self.evaluate()
        self.settle("first")
        self.evaluate()

    def evaluate(self) -> None:
        """Record that the topic was evaluated with its present inputs."""
        self._bench.execute("UPDATE cleave.evaluation SET consumer_version = input_version")

    def settle(self, *newcomers: str, may_defer_moves: bool = True) -> Settlement:
        """Register these consumers, and settle the subscription."""
        requests = [Register(key=self._key, consumer=name, incarnation="1") for name in newcomers]
        state = ConnectionState((), {})
        return self._bench.store.in_transaction(
            settle, self._key, requests, TIMING, state, may_defer_moves=may_defer_moves
        )


@pytest.fixture
def consumers(bench: Bench) -> Consumers:
    return Consumers(bench)


def requested(settlement: Settlement) -> set[int]:
    """Segments of which an owner is requested to release a bucket."""
    return {owner.bucket.segment_id for owner in settlement.owners if owner.is_asked}


def test_a_newcomer_takes_no_bucket_before_the_topic_was_evaluated_for_it(consumers: Consumers) -> None:
    settlement = consumers.settle("second")
    assert (requested(settlement), settlement.defers_moves) == (set(), True)
    assert settlement.settle_again_seconds(TIMING) == DEFERRED_MOVES_CHECK_SECONDS

    consumers.evaluate()
    settlement = consumers.settle()
    assert (len(requested(settlement)), settlement.defers_moves) == (1, False)


def test_a_paused_topic_is_not_evaluated_so_nothing_waits(bench: Bench, consumers: Consumers) -> None:
    bench.execute("UPDATE cleave.evaluation SET not_before = clock_timestamp() + interval '1 hour'")

    assert len(requested(consumers.settle("second"))) == 1


def test_buckets_of_a_segment_that_is_being_split_stay_and_others_move(
    bench: Bench, consumers: Consumers
) -> None:
    intent = bench.intend(splitting(0))
    consumers.settle("second", "third", "fourth")
    consumers.evaluate()

    settlement = consumers.settle()
    deferred = settlement.defers_moves, requested(settlement)
    bench.finish(intent)
    consumers.evaluate()
    settlement = consumers.settle()

    assert deferred == (True, {1})
    assert not settlement.defers_moves
    assert {owner.successor for owner in settlement.owners if owner.bucket.segment_id == 0} > {None}


def test_whoever_may_not_defer_moves_at_once(consumers: Consumers) -> None:
    settlement = consumers.settle("second", may_defer_moves=False)

    assert (len(requested(settlement)), settlement.defers_moves) == (1, False)


def test_buckets_of_a_consumer_that_is_gone_are_granted_before_the_evaluation(
    bench: Bench, consumers: Consumers
) -> None:
    bench.execute("DELETE FROM cleave.consumer WHERE name = 'first'")

    settlement = consumers.settle("second")

    assert {owner.consumer for owner in settlement.owners} == {"second"}


def test_a_seek_waits_for_no_decision(bench: Bench, consumers: Consumers) -> None:
    consumers.settle("second")
    subscription_admin.seek_subscription(
        bench.store, bench.topic_name, "billing", EARLIEST, bench.request(), release_seconds=60.0
    )

    settlement = consumers.settle()

    assert (requested(settlement), settlement.defers_moves) == ({0, 1}, False)


def test_the_leader_moves_buckets_of_a_topic_that_nobody_evaluates(
    led_topic: LedTopic,
) -> None:
    led_topic.life("register 0", "attach 0")
    second = led_topic.life("register 0", "attach 0")
    assert ("session", second.incarnation) in led_topic.rows(second)
    assert "bucket" not in {what for what, _ in led_topic.rows(second)}

    led_topic.leader.clock.seconds += TIMING.deferral_seconds
    led_topic.leader.round()

    assert "bucket" in {what for what, _ in led_topic.rows(second)}, "its owner is requested to release it"
