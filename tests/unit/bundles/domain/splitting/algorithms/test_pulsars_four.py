"""The four algorithms that Pulsar has, at their limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.bundles.domain.ring import LAST_HASH
from controller.bundles.domain.splitting.algorithms.base import (
    MIB,
    BundleTopic,
    CutRefusalReason,
    Midpoint,
    SplitPlan,
)
from controller.domain.errors import InvalidInput
from tests.unit.bundles.domain.splitting.algorithms.questions import ask, cuts, refused, topic, undone
from tests.unit.bundles.domain.strategies import splittable_bundles, topics_in

RANGE = "range_equally_divide"
COUNT = "topic_count_equally_divide"
POSITIONS = "specified_positions_divide"
FLOW = "flow_or_qps_equally_divide"
TEN = (0, 10)


@pytest.mark.parametrize(
    ("bundle", "asked", "points", "left_undone"),
    [
        ((0, LAST_HASH), {"parts": 2}, (0x7FFFFFFF,), []),
        (TEN, {"parts": 3}, (3, 6), []),
        ((5, 7), {"parts": 2}, (6,), []),
        ((5, 7), {"parts": 9}, (6,), [(CutRefusalReason.FEWER_PARTS, "bundles", 2, 9)]),
        (TEN, {"parts": 5, "bundle_budget": 1}, (5,), [(CutRefusalReason.FEWER_PARTS, "bundles", 2, 5)]),
    ],
    ids=[
        "the whole ring",
        "three parts",
        "two hashes",
        "more parts than hashes",
        "more parts than the budget",
    ],
)
def test_range_makes_equal_widths_and_never_more_than_there_are_or_the_budget_allows(
    bundle: tuple[int, int],
    asked: dict[str, int],
    points: tuple[int, ...],
    left_undone: list[tuple[str, str, float, float | None]],
) -> None:
    answer = ask(RANGE, [], bundle, **asked)

    assert cuts(answer) == points
    assert undone(answer) == left_undone


COUNTS = {
    "even": ([2, 4, 8, 9], 6, (2, 2)),
    "odd: one more above": ([2, 4, 8], 3, (1, 2)),
    "two": ([0, 9], 4, (1, 1)),
    "neighbours, where Pulsar takes the lower one along": ([4, 5], 5, (1, 1)),
    "neighbours on the lower end, where Pulsar's split is refused": ([0, 1], 1, (1, 1)),
    "equal in the middle: the gap that is nearest to even": ([1, 5, 5, 5, 7, 9], 6, (4, 2)),
    "equally far from even: the lower one": ([1, 5, 5, 5, 7], 3, (1, 4)),
    "three against two beats one against four": ([1, 5, 5, 7, 7], 6, (3, 2)),
}


@pytest.mark.parametrize(("at", "cut", "sides"), COUNTS.values(), ids=COUNTS)
def test_topic_count_halves_the_count(at: list[int], cut: int, sides: tuple[int, int]) -> None:
    topics = [topic(place, name=f"t{index}") for index, place in enumerate(at)]
    plan = ask(COUNT, topics, TEN)

    assert isinstance(plan, SplitPlan)
    assert plan.cuts == (cut,)
    assert tuple(part.topic_count for part in plan.parts) == sides


@given(st.data())
def test_topic_count_is_as_even_as_any_cut(data: st.DataObject) -> None:
    bundle = data.draw(splittable_bundles())
    topics = data.draw(topics_in(bundle))
    plan = ask(COUNT, topics, bundle)
    if isinstance(plan, SplitPlan):
        sides = [part.topic_count for part in plan.parts]
        below = [sum(other.hash_value < one.hash_value for other in topics) for one in topics]
        best = min(abs(2 * count - len(topics)) for count in below if count)
        assert abs(sides[0] - sides[1]) <= best or {LAST_HASH} & {one.hash_value for one in topics}


def test_topic_count_by_the_upper_rule() -> None:
    assert cuts(ask(COUNT, [topic(2), topic(8)], TEN, midpoint=Midpoint.UPPER)) == (6,)


def test_positions_are_demanded_before_topics_are_looked_at() -> None:
    with pytest.raises(
        InvalidInput, match="no positions to split bundle public/default/0x00000000_0x0000000a at"
    ):
        ask(POSITIONS, [], TEN)


def test_positions_outside_are_named_and_repeated_ones_count_once() -> None:
    answer = ask(POSITIONS, [topic(1), topic(2)], (2, 10), positions=(10, 5, 2, 7, 5, 12))
    assert refused(answer) == (CutRefusalReason.TOO_FEW_TOPICS, "topics", 1, 2)

    answer = ask(POSITIONS, [topic(3), topic(4)], (2, 10), positions=(10, 5, 2, 7, 5, 12))
    assert cuts(answer) == (5, 7)
    assert undone(answer) == [
        (CutRefusalReason.POSITION_OUTSIDE, "hash", 2, 2),
        (CutRefusalReason.POSITION_OUTSIDE, "hash", 10, 10),
        (CutRefusalReason.POSITION_OUTSIDE, "hash", 12, 10),
    ]


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({"positions": (0, 10)}, (CutRefusalReason.NO_POSITION_INSIDE, "positions", 2, 1)),
        ({"positions": (3, 4), "bundle_budget": 1}, (CutRefusalReason.AT_MAX_BUNDLES, "bundles", 1, 2)),
    ],
    ids=["none is inside the bundle", "more than the budget allows"],
)
def test_an_operators_positions_are_refused_and_not_trimmed(
    asked: dict[str, Any], refusal: tuple[str, str, float, float]
) -> None:
    answer = ask(POSITIONS, [topic(1), topic(2)], TEN, **asked)

    assert refused(answer) == refusal


def test_positions_may_be_forced_into_an_empty_bundle() -> None:
    assert cuts(ask(POSITIONS, [], TEN, positions=(4,), force=True)) == (4,)


LIMITS = {"max_msg_rate": 100.0, "max_byte_rate": 100.0 * MIB}


FLOW_CUTS: dict[str, tuple[list[BundleTopic], tuple[int, int], tuple[int, ...]]] = {
    "the limit itself into a part": ([topic(1, 60), topic(3, 40), topic(5, 100)], TEN, (5,)),
    "nothing above the limit": ([topic(1, 60), topic(3, 40.5), topic(5, 100)], TEN, (3, 5)),
    # Pulsar's 100 * 1.1 is 110.00000000000001, so 110 is not enough for it.
    "at exactly the margin": ([topic(1, 55), topic(9, 55)], TEN, (6,)),
    # Pulsar keeps the last one's rate and counts it once for each: here 30 + 30 + 30, and a wrong cut.
    "topics of one hash add up": (
        [
            topic(3, 10, name="a"),
            topic(3, 10, name="b"),
            topic(3, 30, name="c"),
            topic(5, 50),
            topic(7, 60),
        ],
        TEN,
        (7,),
    ),
    "midway between loaded neighbours, wherever idle ones lie": (
        [topic(0, 90), topic(1), topic(8, 90)],
        TEN,
        (5,),
    ),
    "the faintest message rate": ([topic(0, 300), topic(8, 0.5)], TEN, (5,)),
    "the faintest byte rate": ([topic(0, 300), topic(8, 0.0, 0.5 / MIB)], TEN, (5,)),
    # Pulsar answers 0xffffffff and the split fails.
    "never on the last hash": (
        [topic(LAST_HASH - 2, 90), topic(LAST_HASH, 90)],
        (LAST_HASH - 8, LAST_HASH),
        (LAST_HASH - 1,),
    ),
}


@pytest.mark.parametrize(("topics", "bundle", "points"), FLOW_CUTS.values(), ids=FLOW_CUTS)
def test_flow_cuts(topics: list[BundleTopic], bundle: tuple[int, int], points: tuple[int, ...]) -> None:
    assert cuts(ask(FLOW, topics, bundle, **LIMITS)) == points


@pytest.mark.parametrize(
    ("topics", "options", "refusal"),
    [
        (
            [topic(1, 50), topic(9, 50)],
            {"difference_percent": 0.0},
            (CutRefusalReason.BELOW_LIMIT, "msg_rate", 100, 100),
        ),
        ([topic(0, 300), topic(1)], {}, (CutRefusalReason.NO_LOAD, "hashes", 1, 2)),
        ([topic(1, 40, 40), topic(5, 40, 40)], {}, (CutRefusalReason.BELOW_LIMIT, "msg_rate", 80, 110)),
    ],
    ids=[
        "at the limit without a margin",
        "one loaded topic",
        "of figures equally near to their limits messages are named",
    ],
)
def test_flow_is_refused(
    topics: list[BundleTopic], options: dict[str, float], refusal: tuple[str, str, float, float]
) -> None:
    assert refused(ask(FLOW, topics, TEN, **options, **LIMITS)) == refusal


@pytest.mark.parametrize(
    ("rate", "mib", "answer"),
    [
        (109.9, 50.0, (CutRefusalReason.BELOW_LIMIT, "msg_rate", 109.9, 110)),
        (50.0, 109.0, (CutRefusalReason.BELOW_LIMIT, "byte_rate", 109.0 * MIB, 110 * MIB)),
    ],
)
def test_flow_is_refused_below_the_margin_with_the_nearest_figure(
    rate: float, mib: float, answer: tuple[str, str, float, float]
) -> None:
    two = [topic(1, rate / 2, mib / 2), topic(9, rate / 2, mib / 2)]
    refusal = refused(ask(FLOW, two, TEN, **LIMITS))

    assert refusal[:2] == answer[:2]
    assert refusal[2:] == pytest.approx(answer[2:])


@pytest.mark.parametrize(
    ("topics", "budget", "points", "left_undone"),
    [
        ([topic(1, 100), topic(5, 100)], {"bundle_budget": 1}, (4,), []),
        (
            [topic(1, 10), topic(4, 500), topic(8, 10)],
            {},
            (3, 7),
            [(CutRefusalReason.ABOVE_LIMIT_ALONE, "msg_rate", 500, 100)],
        ),
        (
            [topic(at, 90) for at in (1, 3, 5, 7)],
            {"bundle_budget": 2},
            (3, 5),
            [(CutRefusalReason.AT_MAX_BUNDLES, "bundles", 2, 3)],
        ),
    ],
    ids=[
        "nothing of topics at the limit nor of a budget just enough",
        "a topic above the limit has a part of its own and stays hot",
        "the lowest cuts within the budget, and the cuts it needs",
    ],
)
def test_flow_says_what_its_cuts_leave_undone(
    topics: list[BundleTopic],
    budget: dict[str, int],
    points: tuple[int, ...],
    left_undone: list[tuple[str, str, float, float | None]],
) -> None:
    answer = ask(FLOW, topics, TEN, **budget, **LIMITS)

    assert cuts(answer) == points
    assert undone(answer) == left_undone


@given(st.data())
def test_flow_parts_obey_the_limits_unless_one_place_exceeds_them(data: st.DataObject) -> None:
    bundle = data.draw(splittable_bundles())
    topics = data.draw(topics_in(bundle))
    plan = ask(FLOW, topics, bundle, max_msg_rate=900.0, max_byte_rate=1.0 * MIB)
    if isinstance(plan, SplitPlan):
        for part in plan.parts:
            loaded = {
                min(one.hash_value, LAST_HASH - 1)
                for one in topics
                if part.bundle.contains(one.hash_value) and one.stats.msg_rate + one.stats.byte_rate > 0
            }
            assert len(loaded) == 1 or (part.msg_rate <= 900.0 and part.byte_rate <= 1.0 * MIB)
        for low, high in zip(plan.parts, plan.parts[1:], strict=False):
            first = min(
                min(one.hash_value, LAST_HASH - 1)
                for one in [
                    t
                    for t in topics
                    if high.bundle.contains(t.hash_value) and t.stats.msg_rate + t.stats.byte_rate > 0
                ]
            )
            together = [t for t in topics if min(t.hash_value, LAST_HASH - 1) == first]
            msg_rate = low.msg_rate + sum(t.stats.msg_rate for t in together)
            byte_rate = low.byte_rate + sum(t.stats.byte_rate for t in together)
            assert msg_rate > 900.0 or byte_rate > 1.0 * MIB, "a cut that was not needed"
