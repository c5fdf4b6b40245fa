"""The whole cycle: splits and moves joined, averages sampled once, and texts that are read back."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.bundles.domain.balancing.balance import BalanceInputs
from controller.bundles.domain.balancing.moves import BalanceState
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Broker, BrokerReport, Bundle, Cluster
from controller.bundles.domain.cycle import CycleInputs, CycleState, run_cycle
from controller.bundles.domain.cycle_text import (
    cycle_from_json,
    cycle_to_json,
    outcome_to_json,
    state_from_json,
    state_to_json,
)
from controller.bundles.domain.load import BrokerResources, BundleStats, ResourceUsage
from controller.bundles.domain.ring import NamespaceBundle, NamespaceBundles
from controller.bundles.domain.splitting.algorithms.base import BundleTopic
from controller.bundles.domain.splitting.policy import SPLIT_PARAMETERS, SplitPolicy
from controller.domain.errors import InvalidInput, InvalidPolicy
from tests.unit.bundles.domain.balancing import clusters as make

NAMESPACE = "t/n"
BUNDLES = NamespaceBundles.equal(NAMESPACE, 4).bundles
NOW = 1_800_000_000_000
THRESHOLD = BalanceSettings(shedder="threshold", threshold_min_byte_rate=0.0, placement="least_usage")
AT_ONCE = SplitPolicy(rules="modular", max_topics=2)


def stats(rate: float, topics: int = 1) -> BundleStats:
    return BundleStats(rate, rate, rate, rate, topics, 1, 1, 0)


def broker(name: str, usage: float, rate: float) -> Broker:
    report = BrokerReport(BrokerResources(cpu=ResourceUsage(usage, 100.0)), stats(rate), NOW - 1000)
    return Broker(name, report)


def inputs(rates: dict[int, float], counts: dict[int, int] | None = None, **more: object) -> CycleInputs:
    """Broker a has all bundles and is full, b has none; bundles by their index."""
    topic_counts = counts or {}
    bundles = tuple(
        Bundle(str(b), "a", stats(rates.get(n, 1.0), topic_counts.get(n, 1))) for n, b in enumerate(BUNDLES)
    )
    cluster = Cluster((broker("a", 95.0, 100.0), broker("b", 5.0, 0.0)), bundles)
    state = CycleState().sampled(cluster, NOW)
    cluster = replace(
        cluster, bundles=tuple(replace(b, load=state.averages[b.bundle_id]) for b in cluster.bundles)
    )
    balance = BalanceInputs(cluster=cluster, settings=THRESHOLD, state=BalanceState(), now_ms=NOW)
    return replace(CycleInputs(balance=balance), **more)  # type: ignore[arg-type]


def topics_in(bundle: NamespaceBundle, count: int) -> tuple[BundleTopic, ...]:
    step = (bundle.upper - bundle.lower) // (count + 1)
    return tuple(
        BundleTopic(f"persistent://{NAMESPACE}/{n}", bundle.lower + n * step, stats(5.0))
        for n in range(count)
    )


def test_moves_alone_where_nothing_is_hot() -> None:
    outcome = run_cycle(inputs({0: 50.0}, policies={NAMESPACE: SplitPolicy()}))

    assert outcome.splits == ()
    assert [move.bundle_id for move in outcome.balance.moves] == [str(BUNDLES[0])]


def test_a_bundle_that_is_split_does_not_move() -> None:
    hot = inputs(
        {0: 50.0}, {0: 4}, policies={NAMESPACE: AT_ONCE}, topics={str(BUNDLES[0]): topics_in(BUNDLES[0], 4)}
    )

    outcome = run_cycle(hot)

    assert [split.bundle for split in outcome.splits] == [BUNDLES[0]]
    assert outcome.balance.moves == ()
    assert outcome.passed_over == (str(BUNDLES[0]),)


@pytest.mark.parametrize(
    ("busy", "kept", "passed_over"), [(0, [2], [4, 3, 0]), (3, [2], [4, 3, 0]), (2, [4, 3, 0], [2])]
)
def test_an_exchange_gives_way_whole(busy: int, kept: list[int], passed_over: list[int]) -> None:
    cluster = make.cluster({"a": 90, "b": 30}, {"a": [499, 500, 1], "b": [205, 10, 210]})
    settings = BalanceSettings(shedder="transfer", transfer_hits=0)
    balance = BalanceInputs(cluster=cluster, settings=settings, now_ms=make.NOW_MS)
    outcome = run_cycle(CycleInputs(balance=balance, busy=frozenset({make.bundle_id(busy)})))

    assert [move.bundle_id for move in outcome.balance.moves] == [make.bundle_id(at) for at in kept]
    assert outcome.passed_over == tuple(make.bundle_id(at) for at in passed_over)


def test_a_bundle_with_an_act_under_way_is_neither_split_nor_moved() -> None:
    hot = inputs(
        {0: 50.0},
        {0: 4},
        policies={NAMESPACE: AT_ONCE},
        topics={str(BUNDLES[0]): topics_in(BUNDLES[0], 4)},
        busy=frozenset({str(BUNDLES[0])}),
    )

    outcome = run_cycle(hot)

    assert (outcome.splits, outcome.balance.moves) == ((), ())
    assert [refusal.reason.value for refusal in outcome.split_refusals] == ["in-flight"]


def test_a_hot_bundle_whose_report_was_counted_is_no_hotter() -> None:
    patient = SplitPolicy(max_topics=2)
    asked = inputs(
        {}, {0: 4}, policies={NAMESPACE: patient}, topics={str(BUNDLES[0]): topics_in(BUNDLES[0], 4)}
    )
    first = run_cycle(asked)
    assert first.hit_counts == {BUNDLES[0]: 1}

    again = replace(
        asked, hit_counts=first.hit_counts, balance=replace(asked.balance, state=first.balance.state)
    )
    assert run_cycle(again).hit_counts == {BUNDLES[0]: 1}
    new = replace(asked, hit_counts=first.hit_counts)
    assert run_cycle(new).hit_counts == {BUNDLES[0]: 2}


def test_a_hot_bundle_whose_owner_does_not_report_is_no_hotter() -> None:
    patient = SplitPolicy(max_msg_rate=30_000.0)
    asked = inputs({0: 25_000.0}, {0: 4}, policies={NAMESPACE: patient}, hit_counts={BUNDLES[0]: 2})
    reporting = asked.balance.cluster
    silent = replace(reporting.brokers[0], report=None)
    gone = reporting.brokers[1:]
    for brokers in ((silent, *gone), gone):
        left = replace(asked, balance=replace(asked.balance, cluster=replace(reporting, brokers=brokers)))
        for _ in range(4):
            outcome = run_cycle(left)
            assert (outcome.splits, outcome.hit_counts) == ((), {BUNDLES[0]: 2})
            left = replace(left, balance=replace(left.balance, state=outcome.balance.state))
    assert run_cycle(asked).hit_counts == {BUNDLES[0]: 3}


def test_splits_that_wait_count_against_the_cap() -> None:
    policy = replace(AT_ONCE, max_bundles=5)
    asked = inputs(
        {}, {0: 4}, policies={NAMESPACE: policy}, topics={str(BUNDLES[0]): topics_in(BUNDLES[0], 4)}
    )
    assert len(run_cycle(asked).splits) == 1

    waiting = replace(asked, awaited_bundles={NAMESPACE: 1})
    assert [one.reason for one in run_cycle(waiting).split_refusals] == ["at-max-bundles"]
    assert cycle_from_json(cycle_to_json(waiting)) == waiting


def test_a_namespace_without_a_policy_is_not_split() -> None:
    assert run_cycle(inputs({}, {0: 9_999})).split_refusals == ()


def test_policies_that_differ_are_asked_apart() -> None:
    other = NamespaceBundles.equal("t/other", 1).bundles[0]
    given_inputs = inputs({}, {0: 4}, policies={NAMESPACE: AT_ONCE, "t/other": SplitPolicy()})
    cluster = given_inputs.balance.cluster
    more = replace(cluster, bundles=(*cluster.bundles, Bundle(str(other), "b", stats(1.0, 4))))
    both = replace(given_inputs, balance=replace(given_inputs.balance, cluster=more))

    assert {refusal.bundle for refusal in run_cycle(both).split_refusals} == {
        BUNDLES[0]
    }  # no topics were handed over


def test_the_fallback_cuts_where_load_cannot() -> None:
    idle = tuple(replace(topic, stats=BundleStats()) for topic in topics_in(BUNDLES[0], 4))
    hot = inputs({}, {0: 4}, policies={NAMESPACE: AT_ONCE}, topics={str(BUNDLES[0]): idle})

    [split] = run_cycle(hot).splits
    assert split.plan.algorithm == "topic_count_equally_divide"
    alone = replace(hot, policies={NAMESPACE: replace(AT_ONCE, fallback_algorithm="")})
    assert run_cycle(alone).splits == ()


def test_averages_take_a_report_in_once() -> None:
    cluster = inputs({0: 10.0}).balance.cluster
    once = CycleState().sampled(cluster, 5)

    assert once.sampled(cluster, 5) == once
    twice = once.sampled(cluster, 6)
    assert twice.averages[str(BUNDLES[0])].short_term.sample_count == 2
    assert set(once.sampled(replace(cluster, bundles=cluster.bundles[1:]), 5).averages) == {
        bundle.bundle_id for bundle in cluster.bundles[1:]
    }


@given(seed=st.integers(0, 2**32))
def test_texts_give_back_what_is_decided_alike(seed: int) -> None:
    random = Random(seed)
    rates = {n: random.choice([0.0, 1 / 3, 1e300, 7.0, random.random()]) for n in range(4)}
    hits = {bundle: random.randint(0, 5) for bundle in BUNDLES if random.random() < 0.5}
    drawn = inputs(
        rates,
        {0: random.randint(0, 5)},
        policies={NAMESPACE: random.choice([AT_ONCE, SplitPolicy(max_msg_rate=2.0)])},
        topics={str(BUNDLES[0]): topics_in(BUNDLES[0], random.randint(0, 5))},
        hit_counts=hits,
        last_split_at_ms={bundle: NOW - random.randint(0, 200_000) for bundle in hits},
    )

    text = cycle_to_json(drawn)
    back = cycle_from_json(text)

    assert cycle_to_json(back) == text
    assert outcome_to_json(run_cycle(back)) == outcome_to_json(run_cycle(drawn))
    json.loads(outcome_to_json(run_cycle(drawn)))


def test_state_goes_from_cycle_to_cycle_as_text() -> None:
    state = CycleState(hit_counts={BUNDLES[0]: 2}, last_split_at_ms={BUNDLES[1]: NOW}).sampled(
        inputs({0: 0.1}).balance.cluster, NOW
    )

    assert state_from_json(state_to_json(state)) == state
    assert state_from_json("{}") == CycleState()


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"balance": 1}', '{"balance": {"brokers": 1}}'])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="as it was stored"):
        cycle_from_json(text)


@pytest.mark.parametrize("text", ["", "[]", "null", '{"balance": 1}', '{"balance": {"brokers": 1}}'])
def test_another_text_is_no_state(text: str) -> None:
    with pytest.raises(InvalidInput, match="stored text"):
        state_from_json(text)


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_topics": 0},
        {"rules": "x"},
        {"algorithm": "x"},
        {"algorithm": ""},
        {"algorithm": "specified_positions_divide"},
        {"fallback_algorithm": "specified_topic_count_equally_divide"},
        {"max_bundles": 0},
        {"cooldown_seconds": -1},
        {"nonsense": 1},
    ],
)
def test_settings_that_can_never_be_right_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(InvalidPolicy):
        SplitPolicy.from_document(parameters)


def test_a_policy_is_its_document() -> None:
    policy = SplitPolicy(max_topics=5.0, rules="modular")

    assert SplitPolicy.from_document(policy.to_document()) == policy
    assert set(policy.to_document()) == set(SPLIT_PARAMETERS)
