"""Cold neighbours that could be one bundle, and what keeps the others as they are."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.bundles.domain.balancing.balance import BalanceInputs
from controller.bundles.domain.balancing.moves import BalanceState
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Broker, Bundle, Cluster
from controller.bundles.domain.cycle import CycleInputs
from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.merging import (
    MergeInputs,
    MergeRefusalReason,
    MergeSettings,
    MergeVerdict,
    look_for_merges,
    plan_merges,
)
from controller.bundles.domain.ring import LAST_HASH, NamespaceBundle, NamespaceBundles
from controller.bundles.domain.splitting.policy import SplitPolicy
from controller.bundles.domain.splitting.thresholds import BundleReport, SplitThresholds
from controller.bundles.domain.splitting.triggers import (
    TRIGGER_RULES,
    SplitInputs,
    TriggerSettings,
    decide_splits,
)
from controller.domain.errors import InvalidInput
from tests.unit.bundles.domain.balancing.clusters import broker
from tests.unit.bundles.domain.splitting.split_cycles import in_halves

NOW_MS = 1_700_000_000_000
EIGHT = NamespaceBundles.equal("t/n", 8)
WARM = BundleStats(topic_count=2, msg_rate_in=20_000.0)
READY = MergeSettings(cold_cycles=1, min_bundles=1)


def idle(topic_count: int = 1, msg_rate: float = 0.0) -> BundleStats:
    return BundleStats(topic_count=topic_count, msg_rate_in=msg_rate)


def look(*stats: BundleStats, bundles: NamespaceBundles = EIGHT, **changes: Any) -> MergeInputs:
    """One report for each bundle, the same now and over a long time; bundles beyond the list are warm."""
    filled = [*stats, *[WARM] * (bundles.count - len(stats))]
    reports = [BundleReport(bundle, one, one) for bundle, one in zip(bundles.bundles, filled, strict=True)]
    return replace(MergeInputs(NOW_MS, bundles, reports), **changes)


def merged(verdict: MergeVerdict) -> list[tuple[int, ...]]:
    """Indices of the members of each merge."""
    if verdict.plan is None:
        return []
    index = {bundle: at for at, bundle in enumerate(verdict.plan.before.bundles)}
    return [tuple(index[member] for member in merge.members) for merge in verdict.plan.merges]


def refused(verdict: MergeVerdict) -> list[tuple[int, str, str, float, float]]:
    return [
        (refusal.bundle.lower // 2**29, refusal.reason, refusal.metric, refusal.value, refusal.needed)
        for refusal in verdict.refusals
    ]


def test_cold_neighbours_become_one_with_the_sum_of_their_load() -> None:
    verdict = plan_merges(look(WARM, idle(2, 1000.0), idle(3, 500.0)), READY)

    assert merged(verdict) == [(1, 2)]
    merge = verdict.plan.merges[0]
    assert str(merge.merged) == "t/n/0x20000000_0x60000000"
    assert merge.latest == merge.long_term == BundleStats(topic_count=5, msg_rate_in=1500.0)


def test_the_plan_keeps_the_other_boundaries() -> None:
    verdict = plan_merges(look(idle(), idle(), WARM, idle(), idle()), READY)

    assert verdict.plan.after.boundaries == (0, *EIGHT.boundaries[2:4], *EIGHT.boundaries[5:])
    assert verdict.plan.before == EIGHT


@pytest.mark.parametrize(
    ("loads", "min_bundles", "joined"),
    [
        ([idle()] * 5, READY.min_bundles, [(0, 1, 2, 3, 4)]),
        ([idle()] * 4, 7, [(0, 1)]),
        ([idle(), *[WARM] * 6, idle()], READY.min_bundles, []),
    ],
    ids=["runs of more than two", "the lower of equally cold pairs", "not the last with the first"],
)
def test_neighbours_are_joined_as_long_as_they_are_cold_together(
    loads: list[BundleStats], min_bundles: int, joined: list[tuple[int, ...]]
) -> None:
    assert merged(plan_merges(look(*loads), replace(READY, min_bundles=min_bundles))) == joined


def test_what_came_of_a_merge_is_weighed_anew_with_its_neighbours() -> None:
    """Any two of the lower ones could be merged, but not all three; on either side of the pair."""
    rising = [idle(1, rate) for rate in (2250.0, 700.0, 100.0)]

    assert merged(plan_merges(look(*rising), READY)) == [(1, 2)]
    assert merged(plan_merges(look(*reversed(rising)), READY)) == [(0, 1)]
    assert merged(plan_merges(look(WARM, *rising), READY)) == [(2, 3)]


@pytest.mark.parametrize(("rate", "together"), [(1500.0, True), (1500.5, False)])
def test_both_together_stay_at_or_under_the_low_water_mark(rate: float, together: bool) -> None:
    verdict = plan_merges(look(idle(1, 1500.0), idle(1, rate)), READY)

    assert bool(merged(verdict)) is together
    if not together:
        assert refused(verdict) == [
            (0, MergeRefusalReason.ABOVE_LOW_WATER, "msg_rate", 3000.5, 3000.0),
            (1, MergeRefusalReason.ABOVE_LOW_WATER, "msg_rate", 3000.5, 3000.0),
        ]


def test_of_two_neighbours_too_warm_the_nearer_one_is_named() -> None:
    verdict = plan_merges(look(idle(1, 2900.0), idle(1, 1000.0), idle(1, 2500.0)), READY)

    assert refused(verdict)[1] == (1, MergeRefusalReason.ABOVE_LOW_WATER, "msg_rate", 3500.0, 3000.0)


def test_only_pairs_of_its_own_are_named() -> None:
    """The lighter pair beyond the neighbour does not matter for this one."""
    row = [idle(1, rate) for rate in (2900.0, 2950.0, 200.0)]
    above = (MergeRefusalReason.ABOVE_LOW_WATER, "msg_rate", 5850.0, 3000.0)

    assert refused(plan_merges(look(*row), READY))[0] == (0, *above)
    assert refused(plan_merges(look(*reversed(row)), READY))[2] == (2, *above)


@pytest.mark.parametrize(
    "warm",
    [
        BundleStats(topic_count=101),
        BundleStats(producer_count=50, consumer_count=51),
        BundleStats(msg_rate_out=3000.5),
        BundleStats(byte_rate_in=10 * 1024**2 + 1),
    ],
)
@pytest.mark.parametrize("when", ["latest", "long_term"])
def test_warm_by_any_figure_now_or_over_a_long_time_is_not_cold(warm: BundleStats, when: str) -> None:
    rated = when == "latest" or warm.msg_rate + warm.byte_rate > 0
    report = replace(BundleReport(EIGHT.bundles[0], idle(), idle()), **{when: warm})
    cycle = look(idle(), idle())
    cycle = replace(cycle, reports=[report, *cycle.reports[1:]])

    assert merged(plan_merges(cycle, READY)) == ([] if rated else [(0, 1)])


def test_sessions_count_only_where_they_are_a_limit() -> None:
    crowded = BundleStats(topic_count=1, consumer_count=500)
    unlimited = replace(READY, thresholds=SplitThresholds(max_sessions=0))

    assert merged(plan_merges(look(crowded, idle()), READY)) == []
    assert merged(plan_merges(look(crowded, idle()), unlimited)) == [(0, 1)]


def test_coldness_must_last() -> None:
    settings = replace(READY, cold_cycles=3)
    counts: Any = {}
    answers = []
    for stats in (idle(), idle(), WARM, idle(), idle(), idle()):
        verdict = plan_merges(look(stats, idle(), cold_cycles=counts), settings)
        counts = verdict.cold_cycles
        answers.append(merged(verdict))

    assert answers == [[], [], [], [], [], [(0, 1)]]
    assert counts == {EIGHT.bundles[0]: 3, EIGHT.bundles[1]: 6}


def test_a_bundle_not_cold_for_long_enough_says_so_and_its_neighbour_too() -> None:
    verdict = plan_merges(
        look(idle(), idle(), cold_cycles={EIGHT.bundles[0]: 2}), replace(READY, cold_cycles=3)
    )

    assert refused(verdict) == [
        (0, MergeRefusalReason.NO_COLD_NEIGHBOUR, "neighbours", 0, 1),
        (1, MergeRefusalReason.COLD_CYCLES, "cold_cycles", 1, 3),
    ]


def test_silence_is_not_cold() -> None:
    cycle = look(idle(), idle(), idle())
    verdict = plan_merges(replace(cycle, reports=[cycle.reports[0], *cycle.reports[2:]]), READY)

    assert refused(verdict) == [
        (0, MergeRefusalReason.NO_COLD_NEIGHBOUR, "neighbours", 0, 1),
        (1, MergeRefusalReason.NOT_REPORTED, "reports", 0, 1),
        (2, MergeRefusalReason.NO_COLD_NEIGHBOUR, "neighbours", 0, 1),
    ]
    assert EIGHT.bundles[1] not in verdict.cold_cycles


def test_a_range_split_lately_or_now_stays() -> None:
    settings = replace(READY, cooldown_seconds=60)
    parent = NamespaceBundle("t/n", 0, EIGHT.boundaries[2])
    for age_ms, expected in ((59_999, []), (60_000, [(0, 1)]), (-1, [])):
        verdict = plan_merges(look(idle(), idle(), last_split_at_ms={parent: NOW_MS - age_ms}), settings)
        assert merged(verdict) == expected
    assert refused(plan_merges(look(idle(), last_split_at_ms={parent: NOW_MS - 1000}), settings)) == [
        (0, MergeRefusalReason.COOL_DOWN, "milliseconds", 1000, 60_000)
    ]
    twice = {parent: NOW_MS - 50_000, EIGHT.bundles[0]: NOW_MS - 1000}
    assert refused(plan_merges(look(idle(), last_split_at_ms=twice), settings)) == [
        (0, MergeRefusalReason.COOL_DOWN, "milliseconds", 1000, 60_000)
    ]
    assert refused(plan_merges(look(idle(), in_flight=[parent]), settings)) == [
        (0, MergeRefusalReason.IN_FLIGHT, "splits", 1, 0)
    ]


def test_never_below_the_minimum_and_the_coldest_pair_goes_first() -> None:
    loads = [idle(1, rate) for rate in (900.0, 300.0, 200.0, 100.0)]
    verdict = plan_merges(look(*loads), replace(READY, min_bundles=7))

    assert merged(verdict) == [(2, 3)]
    assert refused(verdict) == [
        (0, MergeRefusalReason.AT_MIN_BUNDLES, "bundles", 7, 7),
        (1, MergeRefusalReason.AT_MIN_BUNDLES, "bundles", 7, 7),
    ]


def test_a_bundle_cut_around_one_topic_stays_unless_told_otherwise() -> None:
    isolated = NamespaceBundles("t/n", (0, 7, 8, LAST_HASH))
    cycle = look(idle(), idle(), idle(), bundles=isolated)

    assert merged(plan_merges(cycle, READY)) == []
    refusal = plan_merges(cycle, READY).refusals[1]
    assert (refusal.reason, refusal.metric, refusal.value, refusal.needed) == (
        MergeRefusalReason.ISOLATED,
        "hashes",
        1,
        2,
    )
    assert merged(plan_merges(cycle, replace(READY, keep_isolated=False))) == [(0, 1, 2)]


def test_reports_of_bundles_that_are_no_more_are_ignored_and_two_of_one_refused() -> None:
    gone = BundleReport(NamespaceBundle("t/n", 0, EIGHT.boundaries[2]), idle())
    cycle = look(idle(), idle())

    assert merged(plan_merges(replace(cycle, reports=[*cycle.reports, gone]), READY)) == [(0, 1)]
    with pytest.raises(InvalidInput, match="bundle t/n/0x00000000_0x20000000 is reported twice"):
        plan_merges(replace(cycle, reports=[*cycle.reports, cycle.reports[0]]), READY)


def test_the_steps_create_the_namespace_anew_with_the_plans_boundaries() -> None:
    plan = plan_merges(look(*[idle()] * 8), READY).plan

    assert list(plan.steps) == [
        "record", "stop-clients", "drain", "delete", "create", "restore", "start-clients", "verify",
    ]  # fmt: skip
    create = plan.steps["create"]
    body = json.loads(create[create.index("{") :])
    assert "PUT /admin/v2/namespaces/t/n " in create
    assert body == {"bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}}


stats = st.builds(
    BundleStats,
    msg_rate_in=st.sampled_from([0.0, 100.0, 1500.0, 3000.0, 29_000.0]),
    byte_rate_out=st.sampled_from([0.0, 5e6, 9e7]),
    topic_count=st.sampled_from([0, 1, 40, 100, 900]),
    consumer_count=st.sampled_from([0, 30, 100, 999]),
)
lists = st.lists(st.tuples(stats, stats), min_size=16, max_size=16)


@given(lists, st.sampled_from([0.5, 10.0, 50.0]), st.integers(1, 18), st.randoms(use_true_random=False))
def test_no_merge_makes_what_either_manager_would_split(
    figures: list[tuple[BundleStats, BundleStats]], percent: float, min_bundles: int, random: Random
) -> None:
    bundles = NamespaceBundles.equal("t/n", 16)
    reports = [BundleReport(bundle, *pair) for bundle, pair in zip(bundles.bundles, figures, strict=True)]
    settings = MergeSettings(low_water_percent=percent, cold_cycles=1, min_bundles=min_bundles)
    cycle = MergeInputs(NOW_MS, bundles, reports)
    verdict = plan_merges(cycle, settings)
    shuffled = list(reports)
    random.shuffle(shuffled)

    assert plan_merges(replace(cycle, reports=shuffled), settings) == verdict
    if verdict.plan is None:
        return
    after = verdict.plan.after
    assert sum(bundle.width for bundle in after.bundles) == 2**32
    assert after.count >= min_bundles
    assert {merge.merged for merge in verdict.plan.merges} <= set(after.bundles)
    would_be = [BundleReport(merge.merged, merge.latest, merge.long_term) for merge in verdict.plan.merges]
    for name in TRIGGER_RULES:
        rules = replace(TRIGGER_RULES[name], hit_count_threshold=None)
        split = decide_splits(
            SplitInputs(NOW_MS, would_be, {"t/n": after.count}, 2), in_halves, TriggerSettings(rules)
        )
        assert (split.chosen, split.refusals) == ((), ())
    unchanged = [report for report in reports if report.bundle in after.bundles]
    assert plan_merges(MergeInputs(NOW_MS, after, [*unchanged, *would_be]), settings).plan is None


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("low_water_percent", 0.0),
        ("low_water_percent", 50.1),
        ("cold_cycles", 0),
        ("min_bundles", 0),
        ("cooldown_seconds", -1),
    ],
)
def test_parameters_out_of_bounds_are_refused_by_name_and_value(parameter: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=f"merge setting {parameter} = {value}; give "):
        MergeSettings(**{parameter: value})


def test_the_defaults_keep_far_from_the_split_thresholds() -> None:
    settings = MergeSettings()

    assert (settings.low_water_percent, settings.cold_cycles, settings.min_bundles) == (10, 60, 4)
    assert (settings.cooldown_seconds, settings.keep_isolated) == (3600, True)
    assert (
        MergeSettings(low_water_percent=50, cold_cycles=1, min_bundles=1, cooldown_seconds=0).min_bundles == 1
    )


NAMESPACE = "t/ns"
CUT = NamespaceBundles.equal(NAMESPACE, 8).bundles
LONG = 60
"""Looks in a row that a bundle has to be cold for."""


def cycle_inputs(owners: list[str | None], brokers: list[Broker]) -> CycleInputs:
    """Eight bundles without load; those without an owner are reported by nobody."""
    found = tuple(
        Bundle(str(cut), owner, None if owner is None else BundleStats(topic_count=1))
        for cut, owner in zip(CUT, owners, strict=True)
    )
    balance = BalanceInputs(
        cluster=Cluster(tuple(brokers), found),
        settings=BalanceSettings(),
        state=BalanceState(),
        now_ms=NOW_MS,
    )
    return CycleInputs(balance=balance, policies={NAMESPACE: SplitPolicy()})


def test_what_was_cold_for_long_is_planned_and_counted_on() -> None:
    verdict = look_for_merges(cycle_inputs(["a"] * 8, [broker("a", 1)]), dict.fromkeys(CUT, LONG))[NAMESPACE]

    assert verdict.plan is not None
    assert verdict.plan.after.count == 4  # never fewer
    assert verdict.cold_cycles == dict.fromkeys(CUT, LONG + 1)


def test_a_bundle_nobody_serves_is_empty_where_every_broker_was_heard() -> None:
    verdict = look_for_merges(cycle_inputs([None] * 8, [broker("a", 1)]), dict.fromkeys(CUT, LONG))[NAMESPACE]
    assert verdict.plan is not None


def test_a_bundle_nobody_serves_is_silent_where_a_broker_was_not_heard() -> None:
    brokers = [broker("a", 1), Broker("b", None)]
    verdict = look_for_merges(cycle_inputs([None] * 8, brokers), dict.fromkeys(CUT, LONG))[NAMESPACE]

    assert verdict.plan is None
    assert {one.reason for one in verdict.refusals} == {MergeRefusalReason.NOT_REPORTED}


def test_a_bundle_nobody_serves_is_silent_where_no_broker_is_known() -> None:
    verdict = look_for_merges(cycle_inputs([None] * 8, []), dict.fromkeys(CUT, LONG))[NAMESPACE]

    assert verdict.plan is None
    assert verdict.cold_cycles == {}
    assert {one.reason for one in verdict.refusals} == {MergeRefusalReason.NOT_REPORTED}


@pytest.mark.parametrize("looks", [0, LONG - 2])
def test_what_became_cold_lately_stays_apart(looks: int) -> None:
    verdict = look_for_merges(cycle_inputs(["a"] * 8, [broker("a", 1)]), dict.fromkeys(CUT, looks))[NAMESPACE]

    assert verdict.plan is None
    assert {one.reason for one in verdict.refusals} == {MergeRefusalReason.COLD_CYCLES}
