"""What holds of ``decide`` whatever the situation: any life of a topic, any load, anything in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise

from hypothesis import assume, event, given
from hypothesis import strategies as st

from controller.domain.decision import Decision, Evaluation, Lane, Merge, Rebucket, Split
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadRecord, LoadStats
from controller.domain.reshape import Reshape, ReshapeKind, plan_merge, plan_rebucket, plan_split
from tests.support.ancestry import merge_depth_by_ancestry
from tests.unit.domain.pulsar_reference import pulsar_decides
from tests.unit.domain.situations import calm_situations, situations

LANES = st.sets(st.sampled_from(Lane))


def note(evaluation: Evaluation) -> None:
    """So that ``--hypothesis-show-statistics`` tells whether all kinds of verdicts occur."""
    for act in evaluation.decisions[:1]:
        event(type(act).__name__)
    for refusal in evaluation.refusals:
        event(refusal.reason)


@given(situations(), LANES)
def test_the_same_situation_has_one_answer_also_after_a_trip_through_json(
    situation: EvaluationInput, lanes: set[Lane]
) -> None:
    evaluation = decide(situation, lanes)
    note(evaluation)
    text = situation.to_json()
    replayed = EvaluationInput.from_json(text)
    assert replayed.to_json() == text
    assert decide(replayed, lanes) == evaluation
    assert decide(replayed, lanes).to_json() == evaluation.to_json()


@given(situations())
def test_the_order_in_which_the_inputs_are_held_plays_no_part(situation: EvaluationInput) -> None:
    shuffled = replace(
        situation,
        layout=replace(situation.layout, segments=dict(reversed(list(situation.layout.segments.items())))),
        loads=dict(reversed(list(situation.loads.items()))),
        stream_consumers=dict(reversed(list(situation.stream_consumers.items()))),
        in_flight=situation.in_flight[::-1],
    )
    assert decide(shuffled) == decide(situation)
    assert shuffled.to_json() == situation.to_json()


@given(situations())
def test_nothing_is_done_inside_a_cooldown_whether_it_was_finished_or_is_in_flight(
    situation: EvaluationInput,
) -> None:
    policy, history = situation.policy, situation.history
    gates: dict[type[Decision], tuple[int | None, ReshapeKind, int]] = {
        Split: (history.last_split_at, ReshapeKind.SPLIT, policy.split_cooldown_seconds),
        Merge: (history.last_merge_at, ReshapeKind.MERGE, policy.merge_cooldown_seconds),
        Rebucket: (history.last_rebucket_at, ReshapeKind.REBUCKET, policy.rebucket_cooldown_seconds),
    }
    for act in decide(situation).decisions:
        last, kind, cooldown_seconds = gates[type(act)]
        starts = [] if last is None else [last]
        starts += [live.started_at for live in situation.in_flight if live.kind is kind]
        assert all(situation.now - start >= cooldown_seconds * 1000 for start in starts)


@given(situations())
def test_no_cap_is_passed_whichever_of_the_reshapes_in_flight_commit(situation: EvaluationInput) -> None:
    policy = situation.policy
    evaluation = decide(situation)
    added = sum({Split: 1, Merge: -1}.get(type(act), 0) for act in evaluation.decisions)
    active_ids = {segment.segment_id for segment in situation.layout.active}
    pending = [live for live in situation.in_flight if active_ids & set(live.parent_ids)]
    outcomes = chain.from_iterable(combinations(pending, size) for size in range(len(pending) + 1))
    for committed in outcomes:
        count = len(active_ids) + added + sum(live.child_count - len(live.parent_ids) for live in committed)
        assert added <= 0 or count <= policy.max_segments
        assert added >= 0 or count >= policy.min_segments
    for act in evaluation.decisions:
        if isinstance(act, Rebucket):
            assert act.bucket_count <= policy.entry_bucket_max_per_segment
        if isinstance(act, Merge):
            for segment_id in (act.left_id, act.right_id):
                assert merge_depth_by_ancestry(situation.layout, segment_id) < policy.max_dag_depth


@given(situations())
def test_acts_are_one_or_a_batch_of_rebuckets_and_touch_no_busy_segment_twice(
    situation: EvaluationInput,
) -> None:
    decisions = decide(situation).decisions
    assert len(decisions) <= 1 or all(isinstance(act, Rebucket) for act in decisions)
    touched = [segment_id for act in decisions for segment_id in touched_by(act)]
    assert len(touched) == len(set(touched))
    assert not set(touched) & {i for live in situation.in_flight for i in live.parent_ids}


@given(situations(strict=False))
def test_every_act_is_one_the_layout_accepts(situation: EvaluationInput) -> None:
    perform(situation.layout, decide(situation).decisions, situation)


@given(situations(), LANES, st.data())
def test_the_answer_stays_the_same_at_every_instant_before_valid_until(
    situation: EvaluationInput, lanes: set[Lane], data: st.DataObject
) -> None:
    evaluation = decide(situation, lanes)
    until = evaluation.valid_until
    assert until is None or until > situation.now
    last = situation.now + 10**10 if until is None else until - 1
    middle = data.draw(st.integers(situation.now, last))
    for instant in (middle, last):
        assert decide(replace(situation, now=instant), lanes) == evaluation


@given(situations())
def test_what_is_refused_until_an_instant_is_refused_for_that_reason_no_more_at_it(
    situation: EvaluationInput,
) -> None:
    for refusal in decide(situation).refusals:
        if refusal.not_before is not None:
            assert refusal.not_before > situation.now
            assert refusal not in decide(replace(situation, now=refusal.not_before)).refusals


@given(situations())
def test_no_hot_segment_is_left_alone_without_a_reason(situation: EvaluationInput) -> None:
    evaluation = decide(situation)
    split = {act.segment_id for act in evaluation.decisions if isinstance(act, Split)}
    refused = {r.segment_id for r in evaluation.refusals if r.lane is Lane.LOAD}
    limits = situation.policy.thresholds.split.rates
    for segment in situation.layout.active:
        load = situation.loads.get(segment.segment_id)
        ratios = [r / limit for r, limit in zip(load.stats.rates, limits, strict=True)] if load else [0.0]
        if max(ratios) > 1:
            assert segment.segment_id in split | refused


@given(situations())
def test_no_cold_pair_is_left_alone_without_a_reason(situation: EvaluationInput) -> None:
    evaluation = decide(situation)
    merged = {frozenset(touched_by(act)) for act in evaluation.decisions if isinstance(act, Merge)}
    refused = {frozenset((r.segment_id, r.other_id)) for r in evaluation.refusals if r.lane is Lane.MERGE}
    cold = {i for i, load in situation.loads.items() if situation.policy.thresholds.is_cold(load.stats)}
    for left, right in pairwise(situation.layout.active):
        pair = frozenset((left.segment_id, right.segment_id))
        if pair <= cold:
            assert pair in merged | refused


@given(situations())
def test_a_segment_is_refused_at_most_once_a_lane_and_never_what_was_done(situation: EvaluationInput) -> None:
    """Of the whole topic each reason once: more buckets may be refused for one reason, and fewer for another."""
    evaluation = decide(situation)
    refusals = [(r.lane, r.segment_id, r.other_id, r.reason) for r in evaluation.refusals]
    assert len(refusals) == len(set(refusals))
    places = [(r.lane, r.segment_id, r.other_id) for r in evaluation.refusals if r.segment_id is not None]
    assert len(places) == len(set(places))
    done: set[tuple[Lane, int, int | None]] = {
        (Lane.LOAD, act.segment_id, None) for act in evaluation.decisions if isinstance(act, Split)
    }
    done |= {(Lane.MERGE, a.left_id, a.right_id) for a in evaluation.decisions if isinstance(a, Merge)}
    assert not done & set(places)


@given(calm_situations())
def test_no_merge_is_split_again_by_the_next_evaluation(situation: EvaluationInput) -> None:
    evaluation = decide(situation)
    assume(any(isinstance(act, Merge) for act in evaluation.decisions))
    after = merged_situation(situation, evaluation.decisions)
    splits = [act for act in decide(after).decisions if isinstance(act, Split)]
    assert not splits


@given(situations(strict=True, busy=False) | calm_situations(strict=True))
def test_strict_pulsar_decides_as_pulsar_does_defects_included(situation: EvaluationInput) -> None:
    evaluation = decide(situation)
    note(evaluation)
    assert evaluation.decisions == pulsar_decides(situation)


def gives_up_buckets(acts: Sequence[Decision]) -> bool:
    return all(isinstance(act, Rebucket) and act.reason == "idle-buckets" for act in acts)


@given(situations())
def test_the_first_lane_that_would_act_alone_acts(situation: EvaluationInput) -> None:
    """But for buckets that nobody needs: those are given up when no lane has anything else to do."""
    alone = [decide(situation, {lane}) for lane in Lane]
    acting = sorted((e.decisions for e in alone if e.decisions), key=gives_up_buckets)
    assert decide(situation).decisions == next(iter(acting), ())
    for lane, evaluation in zip(Lane, alone, strict=True):
        assert all(refusal.lane is lane for refusal in evaluation.refusals)
    assert decide(situation, ()) == Evaluation()


def touched_by(act: Decision) -> tuple[int, ...]:
    if isinstance(act, Merge):
        return act.left_id, act.right_id
    assert isinstance(act, Split | Rebucket)
    return (act.segment_id,)


def perform(
    layout: SegmentLayout, decisions: tuple[Decision, ...], situation: EvaluationInput
) -> SegmentLayout:
    most = situation.policy.entry_bucket_max_per_segment
    for act in decisions:
        plan: Reshape
        if isinstance(act, Merge):
            plan = plan_merge(layout, act.left_id, act.right_id, most)
        elif isinstance(act, Rebucket):
            plan = plan_rebucket(layout, act.segment_id, act.bucket_count, most)
        else:
            assert isinstance(act, Split)
            plan = plan_split(layout, act.segment_id, act.at or None)
        layout = layout.apply(plan, situation.now)
    return layout


def merged_situation(situation: EvaluationInput, decisions: tuple[Decision, ...]) -> EvaluationInput:
    """After the merge, the child carrying what both sides carried."""
    (act,) = decisions
    assert isinstance(act, Merge)
    left, right = situation.loads[act.left_id], situation.loads[act.right_id]
    sums = LoadStats(*(a + b for a, b in zip(left.stats.rates, right.stats.rates, strict=True)))
    child_id = situation.layout.next_segment_id
    loads = dict(situation.loads) | {child_id: LoadRecord(sums, situation.now, None, situation.now)}
    return replace(situation, layout=perform(situation.layout, decisions, situation), loads=loads)
