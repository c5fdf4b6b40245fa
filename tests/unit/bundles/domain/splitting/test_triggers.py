"""Which bundles are split in a cycle, and why the other hot ones are not."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.ring import LAST_HASH, NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import (
    CutRefusal,
    CutRefusalReason,
    SplitOptions,
    SplitPlan,
    SplitRequest,
)
from controller.bundles.domain.splitting.policy import plan_split
from controller.bundles.domain.splitting.thresholds import BundleReport
from controller.bundles.domain.splitting.triggers import (
    TRIGGER_RULES,
    SplitInputs,
    SplitRefusalReason,
    TriggerSettings,
    decide_splits,
    trigger_rules,
)
from controller.domain.errors import InvalidInput
from tests.unit.bundles.domain.splitting.split_cycles import (
    AT_ONCE,
    BUNDLES,
    EXTENSIBLE,
    HOT,
    MODULAR,
    NOW_MS,
    WARM,
    chosen,
    cycle,
    hot,
    in_halves,
    refused,
)


def test_modular_counts_what_is_now_and_averages_rates_over_long() -> None:
    peak = BundleReport(BUNDLES[0], HOT, WARM)
    lasting = BundleReport(BUNDLES[1], WARM, HOT)
    crowded = BundleReport(BUNDLES[2], BundleStats(topic_count=1001), WARM)
    emptied = BundleReport(BUNDLES[3], WARM, BundleStats(topic_count=1001))
    reports = [peak, lasting, crowded, emptied]

    assert sorted(chosen(decide_splits(cycle(*reports), in_halves, MODULAR))) == [BUNDLES[1], BUNDLES[2]]
    assert sorted(chosen(decide_splits(cycle(*reports), in_halves, AT_ONCE))) == [BUNDLES[0], BUNDLES[2]]


def test_modular_acts_in_the_first_cycle_and_counts_nothing() -> None:
    verdict = decide_splits(cycle(hot(0)), in_halves, MODULAR)

    assert chosen(verdict) == [BUNDLES[0]]
    assert verdict.hit_counts == {}


NARROW = replace(hot(0), bundle=NamespaceBundle("t/n", LAST_HASH - 1, LAST_HASH))
# The parent was split, then the child it left.
TWO_SPLITS = {
    NamespaceBundle("t/n", BUNDLES[0].lower, BUNDLES[1].upper): NOW_MS - 50_000,
    BUNDLES[1]: NOW_MS - 20_000,
}


@pytest.mark.parametrize(
    ("reported", "settings", "refusal"),
    [
        (cycle(hot(0), broker_count=1), MODULAR, (SplitRefusalReason.TOO_FEW_BROKERS, "brokers", 1, 2)),
        (cycle(hot(0, owned=False)), AT_ONCE, (SplitRefusalReason.NOT_OWNER, "owned", 0, 1)),
        (cycle(NARROW), TriggerSettings(), (SplitRefusalReason.NOT_SPLITTABLE, "hashes", 1, 2)),
        (cycle(hot(0)), replace(MODULAR, enabled=False), (SplitRefusalReason.DISABLED, "enabled", 0, 1)),
        (
            cycle(hot(1), last_split_at_ms=TWO_SPLITS),
            replace(MODULAR, cooldown_seconds=60),
            (SplitRefusalReason.COOL_DOWN, "milliseconds", 20_000, 60_000),
        ),
    ],
    ids=[
        "modular with one broker",
        "another broker owns it",
        "too narrow",
        "switched off",
        "of two splits of a range the latest counts",
    ],
)
def test_a_hot_bundle_is_left_alone_with_a_reason(
    reported: SplitInputs, settings: TriggerSettings, refusal: tuple[str, str, float, float]
) -> None:
    assert refused(decide_splits(reported, in_halves, settings)) == [refusal]


def test_extensible_needs_no_second_broker() -> None:
    assert chosen(decide_splits(cycle(hot(0), broker_count=1), in_halves, AT_ONCE)) == [BUNDLES[0]]


def test_extensible_acts_in_the_fourth_hot_cycle_in_a_row() -> None:
    hits: Any = {}
    seen = []
    for _ in range(5):
        verdict = decide_splits(cycle(hot(0), hit_counts=hits), in_halves, EXTENSIBLE)
        hits = verdict.hit_counts
        seen.append(refused(verdict) or chosen(verdict))

    assert seen == [
        [(SplitRefusalReason.HIT_COUNT, "hot_cycles", 1, 4)],
        [(SplitRefusalReason.HIT_COUNT, "hot_cycles", 2, 4)],
        [(SplitRefusalReason.HIT_COUNT, "hot_cycles", 3, 4)],
        [BUNDLES[0]],
        [(SplitRefusalReason.HIT_COUNT, "hot_cycles", 1, 4)],
    ]


@pytest.mark.parametrize("between", [[BundleReport(BUNDLES[0], WARM, WARM)], []], ids=["cool", "vanished"])
def test_one_cycle_that_is_not_hot_begins_the_count_anew(between: list[BundleReport]) -> None:
    verdict = decide_splits(cycle(*between, hit_counts={BUNDLES[0]: 3}), in_halves, EXTENSIBLE)

    assert verdict.hit_counts == {}
    assert verdict.refusals == ()


def test_a_single_hot_topic_is_left_alone() -> None:
    alone = hot(0, latest=replace(HOT, topic_count=1))
    verdict = decide_splits(cycle(alone, hit_counts={BUNDLES[0]: 3}), in_halves, EXTENSIBLE)

    assert refused(verdict) == [(SplitRefusalReason.TOO_FEW_TOPICS, "topics", 1, 2)]
    assert verdict.refusals[0].because.metric == "msg_rate"
    assert verdict.hit_counts == {}


def test_a_split_under_way_holds_its_range_in_its_namespace_only() -> None:
    """Pulsar compares texts: t/n would refuse t/n2 as well."""
    parent = NamespaceBundle("t/n", 0, BUNDLES[1].upper)
    other = BundleReport(NamespaceBundle("t/n2", 0, BUNDLES[1].upper), HOT, HOT)
    verdict = decide_splits(
        cycle(hot(1), hot(2), other, bundle_counts={"t/n": 16, "t/n2": 4}, in_flight=[parent]), in_halves
    )

    assert [
        (refusal.bundle, refusal.reason, refusal.value, refusal.needed) for refusal in verdict.refusals
    ] == [(BUNDLES[1], SplitRefusalReason.IN_FLIGHT, 1, 0)]
    assert sorted(chosen(verdict)) == [BUNDLES[2], other.bundle]


def test_a_range_rests_after_a_split() -> None:
    """A split in the future, seen after the clock was set back, counts as one of this instant, as it does for merges."""
    settings = replace(MODULAR, cooldown_seconds=60)
    parent = NamespaceBundle("t/n", BUNDLES[0].lower, BUNDLES[1].upper)
    for age_ms, expected in ((59_999, 1), (60_000, 0), (-5_000, 1)):
        verdict = decide_splits(
            cycle(hot(1), hot(2), last_split_at_ms={parent: NOW_MS - age_ms}), in_halves, settings
        )
        since_ms = max(0, age_ms)
        assert verdict.last_split_at_ms.get(parent) == (NOW_MS - since_ms if expected else None)
        assert (
            refused(verdict) == [(SplitRefusalReason.COOL_DOWN, "milliseconds", since_ms, 60_000)] * expected
        )
        assert chosen(verdict)[: 2 - expected] == list(BUNDLES[1 + expected : 3])


def test_instants_go_round_and_old_ones_are_forgotten() -> None:
    settings = replace(MODULAR, cooldown_seconds=60)
    stamps = {BUNDLES[8]: NOW_MS - 60_000, BUNDLES[9]: NOW_MS - 59_000}
    verdict = decide_splits(cycle(hot(0), last_split_at_ms=stamps), in_halves, settings)

    assert verdict.last_split_at_ms == {BUNDLES[9]: NOW_MS - 59_000, BUNDLES[0]: NOW_MS}


@pytest.mark.parametrize("settings", [MODULAR, AT_ONCE], ids=["modular", "extensible"])
def test_splits_of_the_same_cycle_count_for_the_cap(settings: TriggerSettings) -> None:
    verdict = decide_splits(cycle(hot(0), hot(1), hot(2)), in_halves, replace(settings, max_bundles=18))

    assert chosen(verdict) == [BUNDLES[0], BUNDLES[1]]
    assert refused(verdict) == [(SplitRefusalReason.AT_MAX_BUNDLES, "bundles", 18, 18)]


def test_a_plan_counts_for_every_bundle_it_adds() -> None:
    def in_thirds(bundle: NamespaceBundle, budget: int) -> SplitPlan | CutRefusal:
        return plan_split("range_equally_divide", SplitRequest(bundle, (), SplitOptions(parts=3)))

    verdict = decide_splits(cycle(hot(0), hot(1)), in_thirds, replace(MODULAR, max_bundles=19))

    assert chosen(verdict) == [BUNDLES[0]]
    assert refused(verdict) == [(SplitRefusalReason.AT_MAX_BUNDLES, "bundles", 20, 19)]


def test_the_room_left_is_the_budget_of_the_cut() -> None:
    asked = []

    def noting(bundle: NamespaceBundle, budget: int) -> SplitPlan | CutRefusal:
        asked.append((bundle, budget))
        return in_halves(bundle, budget)

    decide_splits(cycle(hot(0), hot(1)), noting, replace(MODULAR, max_bundles=20))

    assert asked == [(BUNDLES[0], 4), (BUNDLES[1], 3)]


def test_a_cycle_makes_so_many_splits_and_the_rest_is_counted_all_the_same() -> None:
    reports = [hot(index) for index in range(12)]
    counts = {report.bundle: 3 for report in reports}
    verdict = decide_splits(cycle(*reports, hit_counts=counts), in_halves, EXTENSIBLE)

    assert chosen(verdict) == list(BUNDLES[:10])
    assert refused(verdict) == [(SplitRefusalReason.CYCLE_LIMIT, "splits", 10, 10)] * 2
    assert verdict.hit_counts == {BUNDLES[10]: 4, BUNDLES[11]: 4}


def test_what_cannot_be_cut_takes_no_room_and_keeps_its_count() -> None:
    def not_the_first(bundle: NamespaceBundle, budget: int) -> SplitPlan | CutRefusal:
        if bundle == BUNDLES[0]:
            return CutRefusal(str(bundle), CutRefusalReason.ONE_HASH, "hashes", 1, 2)
        return in_halves(bundle, budget)

    settings = replace(AT_ONCE, rules=replace(AT_ONCE.rules, max_splits_per_cycle=1))
    verdict = decide_splits(cycle(hot(0), hot(1)), not_the_first, settings)

    assert chosen(verdict) == [BUNDLES[1]]
    assert refused(verdict) == [(SplitRefusalReason.NO_CUT, "hashes", 1, 2)]
    assert verdict.refusals[0].cut_refusal == not_the_first(BUNDLES[0], 1)
    assert verdict.hit_counts == {BUNDLES[0]: 1}


def test_hottest_first_by_share_of_the_limit_then_by_name() -> None:
    crowded = replace(HOT, topic_count=3000)
    verdict = decide_splits(
        cycle(hot(3, 50_000), hot(2, 50_000), BundleReport(BUNDLES[5], crowded, crowded), hot(1, 60_000)),
        in_halves,
    )

    assert chosen(verdict) == [BUNDLES[5], BUNDLES[1], BUNDLES[2], BUNDLES[3]]


@given(
    st.lists(st.sampled_from([0.0, 40_000.0, 50_000.0]), min_size=16, max_size=16),
    st.randoms(use_true_random=False),
)
def test_the_order_of_reports_does_not_matter(rates: list[float], random: Random) -> None:
    reports = [hot(index, rate) for index, rate in enumerate(rates)]
    shuffled = list(reports)
    random.shuffle(shuffled)
    settings = replace(AT_ONCE, max_bundles=20)

    verdict = decide_splits(cycle(*reports), in_halves, settings)
    assert decide_splits(cycle(*shuffled), in_halves, settings) == verdict
    assert len(verdict.chosen) + len(verdict.refusals) == sum(rate > 30_000 for rate in rates)
    assert len(verdict.chosen) <= 4


@pytest.mark.parametrize(
    ("reported", "message"),
    [
        (cycle(hot(0), hot(0)), r"bundle t/n/0x00000000_0x10000000 is reported twice in one cycle"),
        (cycle(hot(0), bundle_counts={}), "no bundle count for namespace t/n"),
    ],
    ids=["a bundle twice", "a namespace without a count"],
)
def test_a_cycle_that_contradicts_itself_is_refused(reported: SplitInputs, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        decide_splits(reported, in_halves)


def test_an_unknown_manager_is_refused_with_the_known_ones() -> None:
    assert trigger_rules("extensible") is TRIGGER_RULES["extensible"]
    with pytest.raises(InvalidInput, match="'simple' is unknown; choose one of modular, extensible"):
        trigger_rules("simple")
