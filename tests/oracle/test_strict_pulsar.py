"""Pulsar 5.0.0-M1's own classes against ours: layouts, ranges, material change, and what is decided.

Under `strict_pulsar` nothing may differ but what the bucket lane of PIP-486 does, which M1 is too old for, and which of
two equal candidates is taken. Without it every difference has one of the documented causes. A failure prints a state
made as small as it can be, and the command that looks at it alone.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from controller.devstack.pulsar.jars import PULSAR_5
from controller.domain.decision import Evaluation
from controller.domain.errors import CleaveError
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadStats
from controller.domain.load_record_rule import is_material_change
from controller.domain.policy import violations
from tests.oracle import deviations, scalable_states
from tests.oracle.pulsar_classes import PulsarClasses, as_acts
from tests.oracle.smallest import smallest
from tests.support.ancestry import merge_depth_by_ancestry
from tests.support.brokers import demand_jars
from tests.support.drawn import cases

pytestmark = [pytest.mark.pulsar, pytest.mark.drawn, pytest.mark.timeout(900)]

SEED = 483
SITUATIONS, SITUATIONS_BY_DEFAULT = cases(5_000, 50_000), cases(5_000, 20_000)
BATCH, PER_LAYOUT, POLICIES = 1_000, 20, 250
TRAILS, ACTS = cases(120, 600), 14  # about ten acts and looks each
RANGES = cases(2_000, 20_000)
CHANGES = cases(3_000, 30_000)
"""Under the strict profile more than 100,000 states in all where there is time for all of them."""
ARGUMENT, STATE = "IllegalArgumentException", "IllegalStateException"


@pytest.fixture(scope="module")
def pulsar() -> Iterator[PulsarClasses]:
    with PulsarClasses(demand_jars(PULSAR_5)) as classes:
        yield classes


def batches(size: int, make: Callable[[Random], Any]) -> Iterator[list[Any]]:
    random = Random(SEED)
    for start in range(0, size, BATCH):
        yield [make(random) for _ in range(min(BATCH, size - start))]


def situations(size: int) -> Iterator[list[EvaluationInput]]:
    """Batches over few policies and layouts, so that most of the work is deciding."""
    random = Random(SEED)
    policies = [scalable_states.policy(random) for _ in range(POLICIES)]
    for _ in range(0, size, BATCH):
        layouts = [scalable_states.layout(random) for _ in range(BATCH // PER_LAYOUT)]
        yield [
            scalable_states.situation(random, layout, random.choice(policies))
            for layout in layouts
            for _ in range(PER_LAYOUT)
        ]


def unlike(pulsar: PulsarClasses, s: EvaluationInput) -> bool:
    """True when the strict profile's answer is neither Pulsar's nor the bucket lane's nor a tie."""
    theirs, without_consumers = pulsar.decide([s, replace(s, stream_consumers={})])
    ours = decide(s)
    return not (
        deviations.same_or_tie(s, as_acts(ours.decisions), theirs)
        or deviations.buckets_explain(s, theirs, without_consumers, ours)
    )


def unexplained(pulsar: PulsarClasses, s: EvaluationInput) -> bool:
    """True when the default profile's answer is not Pulsar's and no documented deviation accounts for it."""
    theirs, corrected = pulsar.decide([s, deviations.without_stored_facts(s)])
    ours = by_default(s)
    return as_acts(ours.decisions) != theirs and deviations.explain(s, theirs, corrected, ours) is None


def by_default(s: EvaluationInput) -> Evaluation:
    return decide(replace(s, policy=replace(s.policy, strict_pulsar=False)))


def show(
    pulsar: PulsarClasses, differs: Callable[[PulsarClasses, EvaluationInput], bool], s: EvaluationInput
) -> str:
    small = smallest(s, lambda candidate: differs(pulsar, candidate))
    return f"python -m tests.oracle.pulsar_classes {shlex.quote(small.to_json())}"


def test_the_strict_profile_decides_as_pulsar_does(pulsar: PulsarClasses) -> None:
    seen: Counter[str] = Counter()
    for batch in situations(SITUATIONS):
        answers = pulsar.decide(batch + [replace(s, stream_consumers={}) for s in batch])
        for s, theirs, without_consumers in zip(batch, answers, answers[len(batch) :], strict=False):
            ours = decide(s)
            acts = as_acts(ours.decisions)
            if acts == theirs:
                seen[theirs[0].reason if theirs else "nothing"] += 1
            elif deviations.is_tie(s, acts, theirs):
                seen[deviations.TIE] += 1
            elif deviations.buckets_explain(s, theirs, without_consumers, ours):
                seen[deviations.BUCKETS] += 1
            else:
                pytest.fail(show(pulsar, unlike, s), pytrace=False)

    assert sum(seen.values()) == SITUATIONS
    acts_of_pulsar = {
        "consumer-count",
        "msgRateIn",
        "byteRateIn",
        "msgRateOut",
        "byteRateOut",
        "cold",
        "nothing",
    }
    assert set(seen) == acts_of_pulsar | {deviations.TIE, deviations.BUCKETS}
    assert min(seen.values()) > SITUATIONS // 1_000, seen


def test_the_default_profile_differs_for_documented_reasons_only(pulsar: PulsarClasses) -> None:
    seen: Counter[str] = Counter()
    for batch in situations(SITUATIONS_BY_DEFAULT):
        batch = [replace(s, capabilities=replace(s.capabilities, shared_buckets=False)) for s in batch]
        answers = pulsar.decide(batch + [deviations.without_stored_facts(s) for s in batch])
        for s, theirs, corrected in zip(batch, answers, answers[len(batch) :], strict=False):
            ours = by_default(s)
            if as_acts(ours.decisions) == theirs:
                seen["as Pulsar"] += 1
                continue
            why = deviations.explain(s, theirs, corrected, ours)
            if why is None:
                pytest.fail(show(pulsar, unexplained, s), pytrace=False)
            seen[why] += 1

    assert set(seen) == {
        "as Pulsar",
        deviations.TIE,
        deviations.WIDTH_ONE,
        deviations.COLDNESS,
        deviations.STALE,
        deviations.COLD_SINCE,
        deviations.DEPTH,
        deviations.SPLIT_AGAIN,
        deviations.CAPACITY,
    }
    assert seen["as Pulsar"] > SITUATIONS_BY_DEFAULT // 2, seen


def test_policies_pulsar_refuses_are_refused(pulsar: PulsarClasses) -> None:
    for batch in batches(BATCH, scalable_states.policy):
        theirs = pulsar.validity(batch)

        assert theirs == [not violations(policy) for policy in batch]
        assert 20 < theirs.count(False) < BATCH - 20


def test_layouts_change_as_pulsars_do(pulsar: PulsarClasses) -> None:
    looked_at = 0
    refused: Counter[str] = Counter()
    for trails in batches(TRAILS, lambda random: scalable_states.trail(random, ACTS)):
        random = Random(SEED)
        looks = [(random.randrange(1_000), [random.randrange(65_536) for _ in range(3)]) for _ in trails]
        items = [
            {"first": trail.first.to_metadata(), "acts": trail.acts, "look_at": look, "hashes": hashes}
            for trail, (look, hashes) in zip(trails, looks, strict=True)
        ]
        for trail, item, told in zip(trails, items, pulsar.ask("trails", items), strict=True):
            layout = trail.first
            assert_same_layout(layout, told[0], item)
            for number, (act, after) in enumerate(zip(trail.acts, told[1:], strict=True), 1):
                changed = scalable_states.perform(layout, act)
                if isinstance(after, str):
                    refused[after] += 1
                    assert changed is None, rerun(item, number)
                    continue
                assert changed is not None, rerun(item, number)
                layout = changed
                looked_at += 1
                assert_same_layout(layout, after, {**item, "acts": trail.acts[:number]})

    assert looked_at > 5 * TRAILS
    assert set(refused) == {ARGUMENT, STATE}


def assert_same_layout(layout: SegmentLayout, theirs: dict[str, Any], item: dict[str, Any]) -> None:
    again = rerun(item, len(item["acts"]))
    assert common(layout.to_metadata()) == common(theirs["metadata"]), again
    assert SegmentLayout.from_metadata(theirs["metadata"]).active == tuple(
        replace(s, bucket_splits=(), merge_depth=merge_depth_by_ancestry(layout, s.segment_id))
        for s in layout.active
    ), again
    assert {str(i): merge_depth_by_ancestry(layout, i) for i in layout.segments} == theirs["depths"], again
    ids = sorted(layout.segments)
    looked_at = layout.segment(ids[item["look_at"] % len(ids)])
    assert list(layout.lineage(looked_at.segment_id)) == theirs["lineage"], again
    assert list(looked_at.parent_ids) == theirs["parents"], again
    assert list(looked_at.child_ids) == theirs["children"], again
    assert [layout.segment_for(h).segment_id for h in item["hashes"]] == theirs["covering"], again


def common(document: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that came after M1 and ours, without what M1 derives, and without nulls, which it leaves out."""
    others = ("entryBucketSplits", "mergeDepth", "legacy", "sealed", "active", "root", "leaf")
    segments = {
        i: {key: value for key, value in segment.items() if key not in others and value is not None}
        for i, segment in document["segments"].items()
    }
    return {"epoch": document["epoch"], "nextSegmentId": document["nextSegmentId"], "segments": segments}


def rerun(item: dict[str, Any], number: int) -> str:
    """The shortest trail that shows it: nothing after the act in question."""
    return json.dumps({**item, "acts": item["acts"][:number]})


def test_ranges_are_what_pulsar_makes_of_them(pulsar: PulsarClasses) -> None:
    for items in batches(RANGES, pair_of_ranges):
        for item, theirs in zip(items, pulsar.ask("ranges", items), strict=True):
            assert described(*item) == theirs, item


def pair_of_ranges(random: Random) -> tuple[list[int], list[int], int]:
    """Neighbours, overlaps, ranges of one hash, and now and then none at all."""
    start = random.choice((0, 1, 65_535, random.randrange(65_536)))
    end = min(65_535, start + random.choice((0, 1, 2, random.randrange(65_536))))
    if random.random() < 0.05:
        start, end = random.choice(((end, start - 1), (-1, end), (start, 65_536)))
    other = random.choice((end + 1, end, start, random.randrange(65_536))) % 65_536
    until = min(65_535, other + random.choice((0, 1, random.randrange(65_536))))
    if random.random() < 0.3 and start > 0:
        other, until = random.randrange(start), start - 1
    return [start, end], [other, until], random.choice((start, end, other, random.randrange(65_536)))


def described(one: list[int], other: list[int], value: int) -> dict[str, Any]:
    """What the worker tells of Pulsar's ranges, of ours."""
    try:
        left, right = HashRange(*one), HashRange(*other)
    except CleaveError:
        return {"refused": ARGUMENT}
    return {
        "text": [str(left), str(right)],
        "sizes": [left.width, right.width],
        "adjacent": left.is_adjacent_to(right),
        "order": (left > right) - (left < right),
        "contains": left.contains(value),
        "halves": [str(half) for half in left.halves()] if left.width > 1 else {"refused": STATE},
        "joined": str(left.join(right)) if left.is_adjacent_to(right) else {"refused": ARGUMENT},
        "read": HashRange.parse(str(left)) == left,
    }


def test_a_change_is_material_when_pulsar_finds_it_so(pulsar: PulsarClasses) -> None:
    verdicts: Counter[bool] = Counter()
    for items in batches(CHANGES, rates_and_threshold):
        for (last, now, threshold), theirs in zip(items, pulsar.ask("changes", items), strict=True):
            ours = is_material_change(LoadStats(*last), LoadStats(*now), threshold)
            assert ours == theirs, (last, now, threshold)
            verdicts[theirs] += 1

    assert min(verdicts.values()) > CHANGES // 20


def rates_and_threshold(random: Random) -> tuple[list[float], list[float], float]:
    """Each rate unchanged, moved to just about the threshold, come from nothing, gone to nothing."""
    threshold = random.choice((0.0, 0.1, 0.25, 0.25, 1.0))
    last = [random.choice((0.0, 1.0, 4.0, 1e3, 9_999.5, random.random() * 1e6)) for _ in range(4)]
    now = list(last)
    for index in range(4):
        if random.random() < 0.4:
            edge = last[index] * (1 + random.choice((-threshold, threshold)))
            near = math.nextafter(edge, random.choice((-math.inf, math.inf)))
            now[index] = max(0.0, random.choice((edge, near, 0.0, last[index] * 1.1)))
    return last, now, threshold
