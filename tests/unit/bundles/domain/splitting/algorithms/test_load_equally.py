"""Even division by load."""

from __future__ import annotations

from itertools import combinations, pairwise
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
from tests.unit.bundles.domain.splitting.algorithms.questions import ask, cuts, refused, topic, undone

EVEN = "load_equally_divide"
WIDE = (0, 1000)


def in_a_row(*loads: float):
    """Topics ten hashes apart: the cut below the i-th stands at 10 * i + 5."""
    return [topic(10 * index + 10, load) for index, load in enumerate(loads)]


def sizes(answer) -> list[float]:
    assert isinstance(answer, SplitPlan), answer.sentence
    return [part.msg_rate for part in answer.parts]


DIVISIONS = {
    "even loads": ([1] * 9, 3, [3, 3, 3]),
    "the heaviest is as light as can be": ([1, 2, 3, 4, 5], 2, [6, 9]),
    "more than the last is left for the last": ([9, 1, 1, 1], 2, [9, 3]),
    "no better than the hottest, and as many parts as asked": ([1, 1, 1, 9, 1], 4, [2, 1, 9, 1]),
    "under the same maximum nearest to even": ([1] * 10, 4, [2, 3, 2, 3]),
    "every topic alone": ([5, 1, 7], 3, [5, 1, 7]),
    "the outlier of PIP-169 is parted from the rest": ([100, 100, 2000, 100], 2, [200, 2100]),
}


@pytest.mark.parametrize(("loads", "parts", "expected"), DIVISIONS.values(), ids=DIVISIONS)
def test_divisions(loads: list[float], parts: int, expected: list[float]) -> None:
    assert sizes(ask(EVEN, in_a_row(*loads), WIDE, parts=parts)) == expected


# Full of bytes on the left, of messages on the right: two with bytes and one with messages make a part.
UNLIKE = [topic(10, 0, 50), topic(20, 0, 50), topic(30, 60, 0), topic(40, 60, 0)]
WITH_IDLE = [topic(10, 5), topic(14), topic(20, 5)]


@pytest.mark.parametrize(
    ("topics", "options", "points"),
    [
        (UNLIKE, {"max_msg_rate": 100.0, "max_byte_rate": 100.0 * MIB}, (35,)),
        (UNLIKE, {"max_msg_rate": 1000.0, "max_byte_rate": 100.0 * MIB}, (15,)),
        (WITH_IDLE, {}, (15,)),
        (WITH_IDLE, {"midpoint": Midpoint.UPPER}, (16,)),
    ],
    ids=[
        "bytes and messages by their limits",
        "a larger limit of messages",
        "midway between loaded topics",
        "midway by the upper rule",
    ],
)
def test_cuts_by_load(topics: list[BundleTopic], options: dict[str, Any], points: tuple[int, ...]) -> None:
    assert cuts(ask(EVEN, topics, WIDE, **options)) == points


def test_no_more_parts_than_loaded_places_or_budget_and_that_is_said() -> None:
    answer = ask(EVEN, [*in_a_row(1, 1, 1), topic(500)], WIDE, parts=5)
    assert sizes(answer) == [1, 1, 1]
    assert undone(answer) == [(CutRefusalReason.FEWER_PARTS, "bundles", 3, 5)]

    answer = ask(EVEN, in_a_row(1, 1, 1, 1), WIDE, parts=4, bundle_budget=1)
    assert sizes(answer) == [2, 2]
    assert undone(answer) == [(CutRefusalReason.FEWER_PARTS, "bundles", 2, 4)]


def test_idle_topics_are_not_worth_a_cut() -> None:
    assert refused(ask(EVEN, [topic(1, 5), topic(2), topic(3)], WIDE)) == (
        CutRefusalReason.NO_LOAD,
        "hashes",
        1,
        2,
    )


def test_bytes_alone_are_load() -> None:
    assert cuts(ask(EVEN, [topic(1, 0, 5), topic(3, 0, 5)], WIDE)) == (2,)


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 3, 7, 20]), st.sampled_from([0, 1, 5, 9])), min_size=2, max_size=7
    ),
    st.integers(2, 4),
)
def test_no_other_division_has_a_lighter_heaviest_part(loads: list[tuple[float, float]], parts: int) -> None:
    """Against every way of cutting, tried one by one."""
    limits = {"max_msg_rate": 10.0, "max_byte_rate": 10.0 * MIB}
    topics = [topic(10 * index, msg, mib) for index, (msg, mib) in enumerate(loads)]
    plan = ask(EVEN, topics, (0, LAST_HASH), parts=parts, **limits)
    loaded = [load for load in loads if any(load)]
    if not isinstance(plan, SplitPlan):
        assert len(loaded) < 2
        return
    wanted = min(parts, len(loaded))

    def heaviest(ends: tuple[int, ...]) -> float:
        edges = [0, *ends, len(loaded)]
        runs = [loaded[low:high] for low, high in pairwise(edges)]
        return max(max(sum(m for m, _ in run), sum(b for _, b in run)) / 10 for run in runs)

    best = min(heaviest(ends) for ends in combinations(range(1, len(loaded)), wanted - 1))
    found = max(max(part.msg_rate / 10, part.byte_rate / MIB / 10) for part in plan.parts)
    assert len(plan.parts) == wanted
    assert found == pytest.approx(best)
    assert all(part.msg_rate + part.byte_rate > 0 for part in plan.parts)
