"""Both proposals of issue 13761: halving one topic's partitions, and a bundle for each topic that stands out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.bundles.domain.ring import LAST_HASH
from controller.bundles.domain.splitting.algorithms.base import (
    MIB,
    BundleTopic,
    CutRefusal,
    CutRefusalReason,
    Midpoint,
    SplitPlan,
)
from controller.domain.errors import InvalidInput
from tests.unit.bundles.domain.splitting.algorithms.questions import ask, cuts, refused, topic, undone
from tests.unit.bundles.domain.strategies import splittable_bundles, topics_in

HALVE = "specified_topic_count_equally_divide"
ISOLATE = "isolate_outstanding"
TEN = (0, 10)
NAMED = {"topics": ("T",)}


def partition(index: int, at: int, msg_rate: float = 0.0, mib_rate: float = 0.0, of: str = "T"):
    return topic(at, msg_rate, mib_rate, name=f"persistent://public/default/{of}-partition-{index}")


MIXED = [topic(1), topic(2), partition(0, 4), partition(7, 8), topic(9), partition(0, 3, of="U")]


@pytest.mark.parametrize(
    ("topics", "midpoint", "points"),
    [
        (MIXED, None, (6,)),
        (MIXED, Midpoint.UPPER, (7,)),
        ([partition(index, at) for index, at in enumerate((1, 2, 4, 5))], None, (3,)),
    ],
    ids=["one topic only", "by the upper rule", "more partitions, as topic count does"],
)
def test_halving_cuts_between_partitions_of_the_topic(
    topics: list[BundleTopic], midpoint: Midpoint | None, points: tuple[int, ...]
) -> None:
    assert cuts(ask(HALVE, topics, TEN, midpoint=midpoint, **NAMED)) == points


def test_halving_needs_two_partitions_here() -> None:
    others = [topic(1), topic(2)]

    assert refused(ask(HALVE, others, TEN, **NAMED)) == (CutRefusalReason.TOPIC_NOT_HERE, "topics", 0, 1)
    assert refused(ask(HALVE, [*others, partition(3, 5)], TEN, **NAMED)) == (
        CutRefusalReason.TOO_FEW_TOPICS, "topics", 1, 2,
    )  # fmt: skip


@pytest.mark.parametrize("names", [(), ("T", "U")])
def test_halving_takes_one_topic(names: tuple[str, ...]) -> None:
    with pytest.raises(
        InvalidInput, match=f"{len(names)} topics to halve in bundle .*; name one, or use isolate"
    ):
        ask(HALVE, [topic(1), topic(2)], TEN, topics=names)


ISOLATED = {
    "in the middle: a cut on either side": ([2, 5], [5], (5, 6)),
    "on the lower end: nothing to its left": ([0, 5], [0], (1,)),
    "on the upper end: nothing to its right": ([2, 9], [9], (9,)),
    "neighbours share an edge": ([2, 5, 6], [5, 6], (5, 6, 7)),
}


@pytest.mark.parametrize(("at", "outstanding", "points"), ISOLATED.values(), ids=ISOLATED)
def test_cuts_stand_around_an_outstanding_hash(
    at: list[int], outstanding: list[int], points: tuple[int, ...]
) -> None:
    topics = [topic(place, 90 if place in outstanding else 1) for place in at]

    assert cuts(ask(ISOLATE, topics, TEN, max_msg_rate=100.0)) == points


@pytest.mark.parametrize(
    ("at", "points"),
    [
        (LAST_HASH, (LAST_HASH - 1,)),
        (LAST_HASH - 1, (LAST_HASH - 1,)),
        (LAST_HASH - 2, (LAST_HASH - 2, LAST_HASH - 1)),
    ],
)
def test_the_last_hash_has_no_edge_of_its_own(at: int, points: tuple[int, ...]) -> None:
    answer = ask(
        ISOLATE, [topic(LAST_HASH - 9), topic(at, 90)], (LAST_HASH - 9, LAST_HASH), max_msg_rate=100.0
    )

    assert cuts(answer) == points


@pytest.mark.parametrize(
    ("rate", "mib", "outstanding"), [(50, 0, True), (49.9, 0, False), (0, 50, True), (0, 49.9, False)]
)
def test_outstanding_from_a_share_of_either_limit_on(rate: float, mib: float, outstanding: bool) -> None:
    answer = ask(ISOLATE, [topic(1), topic(5, rate, mib)], TEN, max_msg_rate=100.0, max_byte_rate=100.0 * MIB)

    assert isinstance(answer, SplitPlan) is outstanding


def test_where_nothing_stands_out_the_nearest_figure_is_named() -> None:
    answer = ask(
        ISOLATE, [topic(1, 10), topic(5, 20, 30)], TEN, max_msg_rate=100.0, max_byte_rate=100.0 * MIB
    )

    assert refused(answer) == (CutRefusalReason.NONE_OUTSTANDING, "byte_rate", 30 * MIB, 50 * MIB)


def test_named_topics_are_isolated_whatever_they_carry() -> None:
    """A base name means its partitions here, a partition's name only itself."""
    some = [partition(0, 2), partition(1, 6), topic(8, 1e9)]

    assert cuts(ask(ISOLATE, some, TEN, topics=("T",))) == (2, 3, 6, 7)
    answer = ask(ISOLATE, some, TEN, topics=("T-partition-1", "T-partition-9"))
    assert cuts(answer) == (6, 7)
    assert undone(answer) == [(CutRefusalReason.TOPIC_NOT_HERE, "topics", 0, 1)]
    assert refused(ask(ISOLATE, some, TEN, topics=("U",))) == (
        CutRefusalReason.TOPIC_NOT_HERE,
        "topics",
        0,
        1,
    )


def test_topics_of_one_hash_are_isolated_together_and_that_is_said() -> None:
    answer = ask(ISOLATE, [partition(0, 5, 90), partition(1, 5, 90), topic(1)], TEN, max_msg_rate=100.0)

    assert cuts(answer) == (5, 6)
    assert undone(answer) == [(CutRefusalReason.INSEPARABLE, "topics", 2, 1)]


def test_a_budget_goes_to_the_heaviest_and_a_lighter_one_that_fits() -> None:
    """3 needs two of three; 7 would need two more; 0 needs one, for it is on the end."""
    some = [topic(0, 60), topic(3, 90), topic(7, 80)]
    answer = ask(ISOLATE, some, TEN, max_msg_rate=100.0, bundle_budget=3)

    assert cuts(answer) == (1, 3, 4)
    assert undone(answer) == [(CutRefusalReason.AT_MAX_BUNDLES, "bundles", 1, 2)]


def test_a_budget_too_small_for_any_is_a_refusal() -> None:
    """The refusal is about the heaviest."""
    answer = ask(ISOLATE, [topic(3, 80), topic(7, 90)], TEN, max_msg_rate=100.0, bundle_budget=1)

    assert refused(answer) == (CutRefusalReason.AT_MAX_BUNDLES, "bundles", 1, 2)
    assert isinstance(answer, CutRefusal)
    assert answer.subject == "persistent://public/default/at-7"


@given(st.data())
def test_each_outstanding_topic_gets_a_bundle_that_can_never_be_split(data: st.DataObject) -> None:
    bundle = data.draw(splittable_bundles())
    topics = data.draw(topics_in(bundle))
    plan = ask(ISOLATE, topics, bundle, max_msg_rate=1000.0, max_byte_rate=1000.0 * MIB)
    rates: Counter[int] = Counter()
    for one in topics:
        rates[min(one.hash_value, LAST_HASH - 1)] += one.stats.msg_rate
    hot = {at for at, msg_rate in rates.items() if msg_rate >= 500.0}

    assert isinstance(plan, SplitPlan) is (len(rates) > 1 and bool(hot))
    if isinstance(plan, SplitPlan):
        own = [part.bundle for part in plan.parts if part.bundle.lower in hot and not part.bundle.can_split]
        assert {part.lower for part in own} == hot
        assert len(plan.parts) <= 2 * len(hot) + 1
