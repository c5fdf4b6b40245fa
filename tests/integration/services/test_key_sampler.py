"""Where load lies, sampled off real logs, and what becomes of a topic that has one hot key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from controller.client.producer import Producer
from controller.clock import Clock, SystemClock
from controller.dataplane.base import DataPlane
from controller.dataplane.optional_abilities import KeySample
from controller.domain.decision import Refusal, RefusalReason
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.hash_range import HashRange
from controller.domain.key_hash import key_hash
from controller.domain.key_sketch import MOST_BINS
from controller.domain.operation import OperationKind
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import plan_split
from controller.postgres_source import PostgresSource
from controller.services import topic_admin
from controller.services.key_sampler import (
    FEW_AGAIN_SECONDS,
    LEAST_MESSAGES,
    KeySampler,
)
from controller.store.decisions.evaluation_inputs import load_evaluation_inputs
from controller.store.load import sketches
from controller.store.load.sketches import Sketch
from controller.store.shards import Shards
from controller.store.topics import policies
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic
from tests.support.brokers import SharedBroker
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.passes import HOT, WARM, decisions, report, run

CAPACITY = 10_000.0
ALL = Shards.of(1, [0])


@pytest.fixture(params=["embedded", pytest.param("pulsar", marks=pytest.mark.pulsar)])
def any_bench(request: pytest.FixtureRequest, database: str) -> Iterator[Bench]:
    """A bench on the embedded logs, and one on a real broker."""
    if request.param == "embedded":
        yield request.getfixturevalue("bench")
        return
    broker: SharedBroker = request.getfixturevalue("pulsar_broker")
    here = PulsarTopic.fresh(broker.admin_url, broker.service_url, "key-samples")
    bench = Bench(database, here)
    yield bench
    here.remove(bench.plane)
    bench.close()


def adaptive(bench: Bench, segments: int = 1) -> None:
    bench.topic_with(segments)
    bench.store.in_transaction(policies.set_topic, bench.topic_id, PolicyOverride(profile="adaptive"))


class LaterClock(SystemClock):
    """The machine's, put forward by hand."""

    later_seconds = 0.0

    def monotonic_seconds(self) -> float:
        return super().monotonic_seconds() + self.later_seconds


def sampler(
    bench: Bench, *, plane: DataPlane | None = None, clock: Clock | None = None, **changes: Any
) -> KeySampler:
    settings = {"messages": 3_000, "from_load": 0.7, "every_seconds": 60.0, "fresh_seconds": 600.0}
    planes = {bench.plane.name: plane or bench.plane}
    return KeySampler(bench.store, planes, lambda: ALL, clock or SystemClock(), **(settings | changes))


def send(bench: Bench, keys: Iterable[str | None]) -> Counter[int]:
    """Send these as an application does; messages a segment."""
    layout = bench.layout
    source = PostgresSource(bench.url)
    with Producer(source, bench.logs, bench.topic_name) as producer:
        sent = Counter[int]()
        for key in keys:
            producer.send(b"x", key=key)
            if key is not None:
                sent[layout.segment_for(key_hash(key).segment_hash).segment_id] += 1
    source.close()
    return sent


def spread(count: int) -> list[str]:
    return [f"customer-{n}" for n in range(count)]


def situation(bench: Bench) -> EvaluationInput:
    with bench.store.transaction() as tx:
        capabilities = {bench.plane.name: bench.plane.capabilities}
        return load_evaluation_inputs(tx, [bench.topic_id], capabilities)[bench.topic_id]


def sketched(bench: Bench) -> dict[int, float]:
    """Messages in each sketch that decisions look at, by segment."""
    return {one: round(sum(bins), 2) for one, bins in situation(bench).sketches.items()}


def test_a_hot_key_ends_up_in_a_small_segment_of_its_own_and_is_then_left_alone_and_named(
    any_bench: Bench,
) -> None:
    bench = any_bench
    hot = "hot"
    place = key_hash(hot).segment_hash
    # Keys in the same bin of the first sketch, so that it takes a second look to tell them apart.
    beside = [key for key in spread(40_000) if key_hash(key).segment_hash // 64 == place // 64][:12]
    assert place not in {key_hash(key).segment_hash for key in beside}
    traffic = [hot] * 1_200 + beside * 20 + spread(560)
    adaptive(bench)
    looker = sampler(bench, every_seconds=0.0)
    send(bench, traffic)
    report(bench, {0: 4 * CAPACITY})
    reshapes: list[OperationKind] = []
    told: list[Refusal] = []

    def one_pass() -> tuple[int, ...]:
        outcome = run(bench)
        told.extend(r for one in outcome.outcomes for r in one.evaluation.refusals)
        return outcome.operation_ids

    for _ in range(5):
        looker.round()
        reshapes += [bench.drive(operation_id).kind for operation_id in one_pass()]
        assert one_pass() == ()  # before anything new is known
        sent = send(bench, traffic)
        report(
            bench,
            {s.segment_id: 4 * CAPACITY * sent[s.segment_id] / len(traffic) for s in bench.layout.active},
        )

    assert len(reshapes) == 2
    bench.check_laws()
    holder = bench.layout.segment_for(place)
    assert holder.hash_range == HashRange(place, place)
    verdicts = {
        (r.segment_id, round(r.value or 0, 2)) for r in told if r.reason is RefusalReason.UNSPLITTABLE
    }
    assert verdicts == {(holder.segment_id, 2.4)}  # 1,200 of 2,000 messages of a load of 4
    for row in decisions(bench):
        replayed = decide(EvaluationInput.from_json(row.situation), row.lanes).to_json()
        assert json.loads(replayed)["decisions"] == row.decisions


def test_only_what_is_near_its_capacity_is_sampled_and_not_again_for_a_while(bench: Bench) -> None:
    adaptive(bench, 4)
    send(bench, spread(2_000))
    report(bench, {0: 0.69 * CAPACITY, 1: 0.7 * CAPACITY, 2: 3 * CAPACITY, 3: WARM})
    looker = sampler(bench)

    assert looker.round() == Counter(sketched=2)

    assert set(sketched(bench)) == {1, 2}
    assert looker.round() == Counter()
    assert sampler(bench).round() == Counter()  # another process knows of it
    assert sampler(bench, every_seconds=0.0).round() == Counter(sketched=2)


@pytest.mark.parametrize("metric", ["msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out"])
def test_each_metric_counts_as_load(bench: Bench, metric: str) -> None:
    adaptive(bench)
    send(bench, spread(200))
    report(bench, {0: 1.0})
    bench.execute(
        f"UPDATE cleave.segment_load SET {metric} = split FROM"
        f" (SELECT 0.75 * split_{metric} AS split FROM cleave.threshold_in_force) k"
    )

    assert sampler(bench).round() == Counter(sketched=1)


def test_what_a_reshape_has_just_made_is_sampled_before_its_load_is_known(bench: Bench) -> None:
    adaptive(bench)
    bench.reshape(lambda layout, _: plan_split(layout, 0))
    clock = LaterClock()
    looker = sampler(bench, clock=clock)
    assert looker.round() == Counter(keyless=2)  # too little there yet

    sent = send(bench, spread(1_000))
    assert looker.round() == Counter()
    clock.later_seconds = FEW_AGAIN_SECONDS

    assert looker.round() == Counter(sketched=2)
    assert sketched(bench) == {1: sent[1], 2: sent[2]}
    bench.execute(
        "UPDATE cleave.segment SET created_at = created_at - interval '5 minutes' WHERE state = 'ACTIVE'"
    )
    assert sampler(bench, every_seconds=0.0).round() == Counter()


def test_what_is_hot_comes_first_then_what_is_new(bench: Bench) -> None:
    adaptive(bench, 4)
    report(bench, {1: 0.8 * CAPACITY, 2: 2 * CAPACITY, 3: 0.9 * CAPACITY})
    bench.reshape(lambda layout, _: plan_split(layout, 0))

    with bench.store.transaction() as tx:
        sketches.write(tx, [Sketch(bench.topic_id, 1, [1])], fresh_seconds=600)
        found = sketches.due(tx, bench.planes, ALL, from_load=0.7, older_than_seconds=0, limit=9)

    assert [one.segment_id for one in found] == [2, 4, 5, 3, 1]


def test_topics_of_other_profiles_and_other_workers_are_left_alone(bench: Bench) -> None:
    bench.topic_with(1)
    bench.store.in_transaction(policies.set_topic, bench.topic_id, PolicyOverride(profile="pip483"))
    send(bench, spread(200))
    report(bench, {0: HOT})
    assert sampler(bench).round() == Counter()

    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(profile="adaptive"))
        other = Shards.of(2, [(bench.topic_id + 1) % 2])
        assert sketches.due(tx, bench.planes, other, from_load=0.7, older_than_seconds=60, limit=9) == []

    assert sampler(bench).round() == Counter(sketched=1)


def test_one_log_that_does_not_answer_holds_up_no_other(bench: Bench) -> None:
    adaptive(bench, 2)
    send(bench, spread(500))
    report(bench, {0: HOT, 1: HOT})
    faulty = FaultyDataPlane(bench.runner_plane, PlannedFault(Fault.LOST_ANSWER, "sample_keys", 1))
    looker = sampler(bench, plane=faulty.as_data_plane())

    assert looker.round() == Counter(sketched=1, failed=1)

    assert looker.round() == Counter()  # not again at once


def test_an_answer_that_nobody_foresaw_holds_up_no_other_either(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    adaptive(bench, 2)
    send(bench, spread(500))
    report(bench, {0: HOT, 1: HOT})
    real, crooked = bench.plane.sample_keys, bench.log_of(0)  # type: ignore[attr-defined]

    def look(backing_topic: str, *, most: int) -> KeySample:
        return real(backing_topic, most=most if backing_topic != crooked else "many")

    monkeypatch.setattr(bench.plane, "sample_keys", look)

    assert sampler(bench).round() == Counter(sketched=1, failed=1)
    assert set(sketched(bench)) == {1}


def test_messages_without_a_key_count_everywhere(bench: Bench) -> None:
    adaptive(bench)
    send(bench, [None] * 300 + ["hot"] * 100)
    report(bench, {0: HOT})

    sampler(bench).round()

    bins = situation(bench).sketches[0]
    assert len(bins) == MOST_BINS
    hottest = key_hash("hot").segment_hash // 64
    evenly = 300 / MOST_BINS
    assert bins[hottest] == pytest.approx(100 + evenly, abs=0.01)
    assert bins[hottest - 1] == pytest.approx(evenly, abs=0.01)


def test_without_any_key_there_is_no_sketch(bench: Bench) -> None:
    adaptive(bench)
    send(bench, [None] * LEAST_MESSAGES)
    report(bench, {0: HOT})

    assert sampler(bench).round() == Counter(keyless=1)
    assert sketched(bench) == {}


def test_what_was_counted_earlier_counts_less_and_less(bench: Bench) -> None:
    adaptive(bench)

    def write(*bins: float) -> tuple[float, ...]:
        bench.store.in_transaction(sketches.write, [Sketch(bench.topic_id, 0, bins)], fresh_seconds=600)
        return situation(bench).sketches[0]

    def grow_older(seconds: float) -> None:
        bench.execute(
            "UPDATE cleave.segment_sketch SET sampled_at = sampled_at - make_interval(secs => :s)", s=seconds
        )

    assert write(8, 0, 4) == (8, 0, 4)
    grow_older(sketches.HALF_LIFE_SECONDS)
    assert write(0, 1, 4) == pytest.approx((4, 1, 6), abs=0.2)
    assert bench.scalar("SELECT messages FROM cleave.segment_sketch") == pytest.approx(11, abs=0.4)
    grow_older(86_400)
    assert write(1, 2, 3) == (1, 2, 3)


def test_a_sketch_serves_for_its_time_and_where_it_can_be_cut_by(bench: Bench) -> None:
    adaptive(bench)
    send(bench, spread(200))
    report(bench, {0: HOT})
    sampler(bench).round()
    assert sketched(bench) == {0: 200}

    with bench.store.transaction() as tx:
        halves = {bench.plane.name: type(bench.plane.capabilities)(midpoint_only=True)}
        assert load_evaluation_inputs(tx, [bench.topic_id], halves)[bench.topic_id].sketches == {}
        policies.set_topic(tx, bench.topic_id, PolicyOverride(profile="pip483"))
    assert sketched(bench) == {}
    bench.store.in_transaction(policies.set_topic, bench.topic_id, PolicyOverride(profile="adaptive"))
    assert sketched(bench) == {0: 200}
    bench.execute("UPDATE cleave.segment_sketch SET fresh_until = clock_timestamp()")
    assert sketched(bench) == {}


def test_what_is_sealed_pruned_or_deleted_has_none(bench: Bench) -> None:
    adaptive(bench)
    bench.store.in_transaction(sketches.write, [Sketch(bench.topic_id, 0, [1])], fresh_seconds=600)
    bench.reshape(lambda layout, _: plan_split(layout, 0))
    assert sketched(bench) == {}
    with bench.store.transaction() as tx:  # sampled before, written too late
        sketches.write(tx, [Sketch(bench.topic_id, 0, [1])], fresh_seconds=600)

    bench.settle(collects=True)
    assert bench.rows("SELECT segment_id FROM cleave.segment_sketch") == []
    bench.store.in_transaction(
        sketches.write, [Sketch(bench.topic_id, one, [1]) for one in (0, 1)], fresh_seconds=600
    )
    assert bench.rows("SELECT segment_id FROM cleave.segment_sketch") == [(1,)]

    bench.finish(topic_admin.delete_topic(bench.store, bench.topic_name, bench.request()))
    assert bench.rows("SELECT segment_id FROM cleave.segment_sketch") == []


def test_a_sketch_that_nobody_renews_is_forgotten(bench: Bench) -> None:
    adaptive(bench, 2)
    bench.store.in_transaction(
        sketches.write, [Sketch(bench.topic_id, one, [1]) for one in (0, 1)], fresh_seconds=600
    )
    bench.execute(
        "UPDATE cleave.segment_sketch SET sampled_at = sampled_at - make_interval(secs => :kept) WHERE segment_id = 0",
        kept=sketches.KEPT_SECONDS,
    )

    bench.store.in_transaction(sketches.write, [], fresh_seconds=600)

    assert bench.rows("SELECT segment_id FROM cleave.segment_sketch") == [(1,)]
