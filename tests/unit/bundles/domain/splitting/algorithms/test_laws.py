"""What every algorithm promises, whatever the topics."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.bundles.domain.ring import LAST_HASH, NamespaceBundle, NamespaceBundles
from controller.bundles.domain.splitting.algorithms.base import (
    MIB,
    CutRefusalReason,
    Midpoint,
    SplitOptions,
    SplitPlan,
    SplitRequest,
)
from controller.bundles.domain.splitting.policy import (
    SPLIT_ALGORITHMS,
    plan_split,
    split_algorithm,
)
from controller.domain.errors import InvalidInput
from tests.support.drawn import cases
from tests.unit.bundles.domain.splitting.algorithms.questions import ask, refused, topic
from tests.unit.bundles.domain.strategies import NAMESPACE, splittable_bundles, topics_in

every_algorithm = pytest.mark.parametrize("name", SPLIT_ALGORITHMS)
budgets = st.none() | st.integers(0, 6)


@st.composite
def requests(draw: st.DrawFn, name: str) -> SplitRequest:
    """A question the algorithm can be asked: names and positions given where it needs them."""
    bundle = draw(splittable_bundles())
    topics = draw(topics_in(bundle))
    near = st.integers(max(0, bundle.lower - 2), min(LAST_HASH, bundle.upper + 2))
    named = draw(st.sampled_from([(), (f"{NAMESPACE}/t",), (f"{NAMESPACE}/t-partition-1", "gone")]))
    needs_one = name == "specified_topic_count_equally_divide"
    options = SplitOptions(
        max_msg_rate=draw(st.sampled_from([450.0, 1000.0])),
        max_byte_rate=draw(st.sampled_from([0.5, 1.0])) * MIB,
        difference_percent=draw(st.sampled_from([0.0, 10.0])),
        midpoint=draw(st.none() | st.sampled_from(Midpoint)),
        positions=tuple(draw(st.lists(near, min_size=1, max_size=4))),
        force=draw(st.booleans()),
        parts=draw(st.integers(2, 5)),
        topics=(f"{NAMESPACE}/t",) if needs_one else named,
        bundle_budget=draw(budgets),
    )
    return SplitRequest(bundle, topics, options)


@every_algorithm
@given(data=st.data())
def test_a_plan_tiles_the_bundle_within_the_budget_and_every_topic_is_in_one_part(
    name: str, data: st.DataObject
) -> None:
    request = data.draw(requests(name))
    bundle, budget = request.bundle, request.options.bundle_budget
    plan = plan_split(name, request)

    if isinstance(plan, SplitPlan):
        assert all(bundle.lower < cut < bundle.upper for cut in plan.cuts)
        assert list(plan.cuts) == sorted(set(plan.cuts))
        assert len(plan.cuts) <= (len(plan.cuts) if budget is None else budget)
        edges = {0, bundle.lower, *plan.cuts, bundle.upper, LAST_HASH}
        assert bundle.parts(plan.cuts) == tuple(part.bundle for part in plan.parts)
        assert (
            sum(child.width for child in NamespaceBundles(NAMESPACE, tuple(sorted(edges))).bundles) == 2**32
        )
        for part in plan.parts:
            inside = [topic.stats for topic in request.topics if part.bundle.contains(topic.hash_value)]
            assert part.topic_count == len(inside)
            assert part.msg_rate == pytest.approx(sum(stats.msg_rate for stats in inside))
            assert part.byte_rate == pytest.approx(sum(stats.byte_rate for stats in inside))
        assert sum(part.topic_count for part in plan.parts) == len(request.topics)
    if budget == 0:
        assert refused(plan) == (CutRefusalReason.AT_MAX_BUNDLES, "bundles", 0, 1)


@every_algorithm
@settings(max_examples=cases(10, 80))
@given(data=st.data())
def test_the_order_of_topics_and_positions_does_not_matter(name: str, data: st.DataObject) -> None:
    request = data.draw(requests(name))
    random = data.draw(st.randoms(use_true_random=False))
    shuffled, positions = list(request.topics), list(request.options.positions)
    for some in (shuffled, positions):
        random.shuffle(some)
    assert isinstance(random, Random)
    options = SplitOptions(
        **{name: getattr(request.options, name) for name in SplitOptions.__slots__}
        | {"positions": tuple(positions)}
    )

    assert plan_split(name, SplitRequest(request.bundle, shuffled, options)) == plan_split(name, request)


@every_algorithm
@pytest.mark.parametrize("ends", [(7, 8), (LAST_HASH - 1, LAST_HASH)])
def test_a_bundle_too_narrow_is_refused_with_its_width(name: str, ends: tuple[int, int]) -> None:
    answer = ask(name, [topic(ends[0], 1e6)], ends, positions=(8,), topics=("x",))

    assert refused(answer) == (CutRefusalReason.NOT_SPLITTABLE, "hashes", 1, 2)


ONE_TOPIC = {name: [topic(5, 1e6, name="persistent://public/default/x")] for name in SPLIT_ALGORITHMS}
TWO_AT_ONE_PLACE = [
    topic(5, 1e6, name="persistent://public/default/x-partition-0"),
    topic(5, 1e6, name="persistent://public/default/x-partition-1"),
]
looking_at_topics = pytest.mark.parametrize(
    "name", [n for n in SPLIT_ALGORITHMS if n != "range_equally_divide"]
)


@looking_at_topics
def test_a_single_topic_is_not_divided_and_that_is_said(name: str) -> None:
    answer = ask(name, ONE_TOPIC[name], (0, 10), positions=(6,), topics=("x",))

    assert refused(answer) == (CutRefusalReason.TOO_FEW_TOPICS, "topics", 1, 2)


@pytest.mark.parametrize(
    "name", [n for n in SPLIT_ALGORITHMS if n not in ("range_equally_divide", "specified_positions_divide")]
)
@pytest.mark.parametrize("high", [5, LAST_HASH])
def test_topics_that_no_cut_can_part_are_refused_as_one_hash(name: str, high: int) -> None:
    """All at one hash, or at the last two, between which no boundary can stand."""
    two = TWO_AT_ONE_PLACE
    if high == LAST_HASH:
        two = [topic(LAST_HASH - index, 1e6, name=two[index].name) for index in (0, 1)]
    answer = ask(name, two, (0, LAST_HASH), topics=("x",))

    assert refused(answer) == (CutRefusalReason.ONE_HASH, "hashes", 1, 2)


def test_topics_of_the_rest_of_the_namespace_do_not_count() -> None:
    elsewhere = [topic(20), topic(10), topic(9)]

    assert refused(ask("topic_count_equally_divide", elsewhere, (0, 10))) == (
        CutRefusalReason.TOO_FEW_TOPICS, "topics", 1, 2,
    )  # fmt: skip


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        InvalidInput, match="'RANGE_EQUALLY_DIVIDE' is unknown; choose one of range_equally_divide, "
    ):
        split_algorithm("RANGE_EQUALLY_DIVIDE")


def test_a_bundle_of_another_namespace_is_answered_likewise() -> None:
    bundle = NamespaceBundle("t/n", 0, 10)
    plan = plan_split("range_equally_divide", SplitRequest(bundle, ()))

    assert isinstance(plan, SplitPlan)
    assert [str(part.bundle) for part in plan.parts] == [
        "t/n/0x00000000_0x00000005",
        "t/n/0x00000005_0x0000000a",
    ]
