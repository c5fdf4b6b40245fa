"""Which acts wait for a person, what an approval covers, and what is done in the topic meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from controller.domain.approval_rule import (
    MAX_PENDING,
    Approval,
    is_marked,
    requires_approvals,
    without_approvals,
)
from controller.domain.approval_states import VALID_MS, ApprovalState
from controller.domain.decision import (
    Decision,
    Evaluation,
    Lane,
    Merge,
    Rebucket,
    Recut,
    Refusal,
    RefusalReason,
    Split,
    kind_of,
    parts_of,
    sealed_by,
    size_of,
)
from controller.domain.evaluation_input import Capabilities, EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.policy import AutoScalePolicy
from tests.unit.domain.situations import NOW, SHARED, calm_situations, situations, topic

MERGES_WAIT = AutoScalePolicy(approval_merges=True)
ANYTHING = Capabilities(max_children=64, recut=True, shared_buckets=True)
APPROVED, REJECTED, PENDING = ApprovalState.APPROVED, ApprovalState.REJECTED, ApprovalState.PENDING
HOUR_MS = 3_600_000


def known(act: Decision, state: ApprovalState, answered_at: int | None = NOW) -> Approval:
    at = None if state is PENDING else answered_at
    return Approval(kind_of(act), sealed_by(act), parts_of(act), state, at)


def cold(*approvals: Approval, size: int = 2, policy: AutoScalePolicy = MERGES_WAIT) -> EvaluationInput:
    return replace(topic(*range(10, 10 + size), policy=policy), approvals=approvals)


def why(evaluation: Evaluation) -> list[tuple[int | None, int | None, RefusalReason]]:
    return [(r.segment_id, r.other_id, r.reason) for r in evaluation.refusals]


@pytest.mark.parametrize(
    ("act", "parts", "size", "joins"),
    [
        (Split(1), 2, 2, False),
        (Split(1, (10, 20, 30)), 4, 4, False),
        (Merge(1, 2), 1, 2, True),
        (Recut((1, 2, 3), ()), 1, 3, True),
        (Recut((1, 2, 3), (9,)), 2, 3, True),
        (Recut((1, 2), (9, 10)), 3, 3, False),
        (Recut((1, 2), (9,)), 2, 2, False),
    ],
)
def test_what_is_marked_is_what_leaves_fewer_segments_or_is_large(
    act: Decision, parts: int, size: int, joins: bool
) -> None:
    assert (parts_of(act), size_of(act)) == (parts, size)
    assert not is_marked(AutoScalePolicy(), act)
    assert is_marked(MERGES_WAIT, act) is joins
    assert is_marked(AutoScalePolicy(approval_min_segments=size), act)
    assert not is_marked(AutoScalePolicy(approval_min_segments=size + 1), act)


@pytest.mark.parametrize(
    ("approved", "wanted", "covers"),
    [
        (Merge(1, 2), Merge(1, 2), True),
        (Merge(1, 2), Merge(2, 3), False),
        (Merge(1, 2), Recut((1, 2), ()), False),
        (Split(1, (8, 9)), Split(1), True),
        (Split(1, (8, 9)), Split(1, (4, 5)), True),
        (Split(1, (8, 9)), Split(1, (4, 5, 6)), False),
        (Recut((1, 2, 3), ()), Recut((1, 2, 3), (7,)), True),
        (Recut((1, 2, 3), (7,)), Recut((1, 2, 3), ()), False),
        (Recut((1, 2, 3), (7,)), Recut((1, 2, 3), (7, 8, 9)), False),
        (Recut((1, 2), (7, 8)), Recut((1, 2, 3), (7, 8)), False),
        (Rebucket(1, 8), Rebucket(1, 8), True),
        (Rebucket(1, 8), Rebucket(1, 16), False),
    ],
)
def test_an_approval_covers_the_same_act_and_none_that_goes_further(
    approved: Decision, wanted: Decision, covers: bool
) -> None:
    assert known(approved, APPROVED).covers(wanted) is covers


def test_a_marked_merge_is_proposed_and_does_not_go() -> None:
    evaluation = decide(cold())

    assert evaluation.decisions == ()
    assert evaluation.proposals == (Merge(0, 1, "cold"),)
    assert evaluation.refusals == (
        Refusal(0, Lane.MERGE, RefusalReason.AWAITING_APPROVAL, "merge", 2, other_id=1),
    )


def test_what_waits_is_not_proposed_again() -> None:
    evaluation = decide(cold(known(Merge(0, 1), PENDING)))

    assert (evaluation.decisions, evaluation.proposals) == ((), ())
    assert why(evaluation) == [(0, 1, RefusalReason.AWAITING_APPROVAL)]


def test_what_was_approved_goes_for_an_hour_and_is_then_proposed_anew() -> None:
    situation = cold(known(Merge(0, 1), APPROVED, NOW - VALID_MS + 1))
    evaluation = decide(situation)
    late = decide(replace(situation, now=NOW + 1))

    assert evaluation.decisions == (Merge(0, 1, "cold"),)
    assert evaluation.valid_until == NOW + 1
    assert (late.decisions, late.proposals) == ((), (Merge(0, 1, "cold"),))


def test_what_was_refused_is_held_and_then_proposed_anew() -> None:
    policy = replace(MERGES_WAIT, approval_hold_seconds=600)
    situation = cold(known(Merge(0, 1), REJECTED, NOW - 599_000), policy=policy)
    evaluation = decide(situation)

    assert (evaluation.decisions, evaluation.proposals) == ((), ())
    [refusal] = evaluation.refusals
    assert (refusal.reason, refusal.value, refusal.needed) == (
        RefusalReason.APPROVAL_REFUSED,
        NOW - 599_000,
        NOW + 1_000,
    )
    assert evaluation.valid_until == NOW + 1_000
    assert decide(replace(situation, now=NOW + 1_000)).proposals == (Merge(0, 1, "cold"),)


def test_segments_beside_a_held_act_are_asked_about_too_but_not_its_own() -> None:
    evaluation = decide(cold(size=5))

    assert evaluation.proposals == (Merge(0, 1, "cold"), Merge(2, 3, "cold"))
    assert (3, 4, RefusalReason.AWAITING_APPROVAL) in why(evaluation)  # the fifth hears whom it waits for


def test_a_merge_that_waits_does_not_stop_an_approved_one() -> None:
    evaluation = decide(cold(known(Merge(0, 1), PENDING), known(Merge(2, 3), APPROVED), size=4))

    assert evaluation.decisions == (Merge(2, 3, "cold"),)


@pytest.mark.parametrize("state", [PENDING, REJECTED])
@pytest.mark.parametrize("size", [3, 5])
def test_a_merge_that_waits_or_was_refused_does_not_stop_an_approved_one_of_the_same_segment(
    state: ApprovalState, size: int
) -> None:
    answered = known(Merge(0, 1), state), known(Merge(1, 2), APPROVED)
    evaluation = decide(cold(*answered, size=size))

    assert (evaluation.decisions, evaluation.proposals) == ((Merge(1, 2, "cold"),), ())


def test_a_merge_is_not_proposed_whose_segment_an_approved_one_takes() -> None:
    evaluation = decide(cold(known(Merge(1, 2), APPROVED), size=3))

    assert (evaluation.decisions, evaluation.proposals) == ((Merge(1, 2, "cold"),), ())


def test_a_split_is_not_stopped_by_merges_that_wait() -> None:
    evaluation = decide(topic(10, 20, 99_999, policy=MERGES_WAIT))

    assert evaluation.decisions == (Split(2, (), "msgRateIn"),)
    assert evaluation.proposals == ()


def test_an_approved_act_beyond_a_limit_does_not_go() -> None:
    """The limit was lowered after somebody said yes."""
    policy = replace(MERGES_WAIT, min_segments=2)
    evaluation = decide(cold(known(Merge(0, 1), APPROVED), policy=policy))

    assert evaluation.decisions == ()
    assert {r.reason for r in evaluation.refusals} == {RefusalReason.AT_MIN_SEGMENTS}


@pytest.mark.parametrize("act", [Split(1, (), "consumer-count"), Rebucket(1, 16)])
def test_what_a_consumer_asks_for_is_never_marked(act: Decision) -> None:
    policy = AutoScalePolicy(approval_merges=True, approval_min_segments=1)

    assert not is_marked(policy, act)
    assert is_marked(policy, Split(1))


def test_who_comes_to_consume_waits_for_nobody_s_approval() -> None:
    policy = AutoScalePolicy(approval_min_segments=1)
    situation = topic(10, 20, 30, consumers=4, policy=policy, capabilities=Capabilities())
    evaluation = decide(situation, {Lane.CONSUMER})

    assert (evaluation.decisions, evaluation.proposals) == ((Split(2, (), "consumer-count"),), ())


def test_a_large_act_of_the_ring_plan_waits_and_the_others_of_the_plan_go() -> None:
    policy = AutoScalePolicy(profile="adaptive", approval_min_segments=8)
    capacity = policy.split_msg_rate_in
    situation = topic(20 * capacity, 0.8 * capacity, 2 * capacity, policy=policy, capabilities=ANYTHING)
    evaluation = decide(situation)

    [large] = evaluation.proposals
    assert (sealed_by(large), size_of(large)) == ((0,), 23)
    [small] = evaluation.decisions
    assert sealed_by(small) == (2,)
    approved = decide(replace(situation, approvals=(known(large, APPROVED),)))
    assert {sealed_by(act) for act in approved.decisions} == {(0,), (2,)}


def test_an_approval_of_a_small_split_lets_no_larger_one_go() -> None:
    policy = AutoScalePolicy(profile="adaptive", approval_min_segments=8)
    situation = topic(20 * policy.split_msg_rate_in, 10, policy=policy, capabilities=ANYTHING)
    [large] = decide(situation).proposals
    small = known(Split(sealed_by(large)[0], (0x1000,)), APPROVED)

    evaluation = decide(replace(situation, approvals=(small,)))

    assert large not in evaluation.decisions
    assert evaluation.proposals == (large,)


def test_a_person_has_no_more_than_a_few_of_a_topic_to_answer() -> None:
    evaluation = decide(cold(size=2 * MAX_PENDING + 6))

    assert len(evaluation.proposals) == MAX_PENDING
    told = [r for r in evaluation.refusals if r.reason is RefusalReason.AWAITING_APPROVAL]
    assert {i for r in told for i in (r.segment_id, r.other_id)} == {*range(2 * MAX_PENDING + 6)}


def test_a_backtest_takes_everything_for_approved() -> None:
    policy = replace(MERGES_WAIT, approval_min_segments=1)

    assert not requires_approvals(without_approvals(policy))
    assert decide(cold(policy=without_approvals(policy))).decisions == (Merge(0, 1, "cold"),)


@st.composite
def situations_with_approvals(draw: st.DrawFn) -> EvaluationInput:
    """Any situation whose policy marks something, with answers to some of what would be done."""
    situation = draw(situations() | calm_situations())
    profile = draw(st.sampled_from(["pip483", "adaptive"]))
    policy = replace(
        situation.policy,
        profile=profile,
        strict_pulsar=situation.policy.strict_pulsar and profile == "pip483",
        approval_merges=draw(st.booleans()),
        approval_min_segments=draw(st.integers(0, 3)),
        approval_hold_seconds=draw(st.sampled_from([0, 60, 86_400])),
    )
    capabilities = draw(st.sampled_from([Capabilities(), SHARED, ANYTHING]))
    asked = replace(situation, policy=policy, capabilities=capabilities)
    answers = [
        known(
            act, draw(st.sampled_from([PENDING, APPROVED, REJECTED])), NOW - draw(st.integers(0, HOUR_MS + 5))
        )
        for act in (
            *decide(asked).proposals,
            *decide(replace(asked, policy=without_approvals(policy))).decisions,
        )
        if draw(st.booleans())
    ]
    by_act = {(one.kind, one.segment_ids): one for one in answers}
    return replace(asked, approvals=tuple(by_act.values()))


@given(situations_with_approvals())
def test_nothing_that_is_marked_goes_without_an_approval(situation: EvaluationInput) -> None:
    evaluation = decide(situation)
    for act in evaluation.decisions:
        if is_marked(situation.policy, act):
            event("approved")
            assert any(one.state is APPROVED and one.covers(act) for one in situation.approvals)
    for act in evaluation.proposals:
        event("proposed")
        assert is_marked(situation.policy, act)
        assert any(
            r.reason is RefusalReason.AWAITING_APPROVAL and r.segment_id == sealed_by(act)[0]
            for r in evaluation.refusals
        )
    touched = [i for act in (*evaluation.decisions, *evaluation.proposals) for i in sealed_by(act)]
    assert len(touched) == len({*touched})


@given(situations() | calm_situations())
def test_a_policy_that_marks_nothing_decides_as_if_there_were_no_approvals(
    situation: EvaluationInput,
) -> None:
    acts = decide(situation).decisions
    answers = tuple(known(act, REJECTED) for act in acts)
    bare = decide(situation)

    assert decide(replace(situation, approvals=answers)) == bare
    assert bare.proposals == ()


@given(situations_with_approvals())
def test_what_waits_for_a_person_is_decided_the_same_from_its_text(situation: EvaluationInput) -> None:
    text = situation.to_json()
    read = EvaluationInput.from_json(text)
    assert read.to_json() == text
    assert decide(read) == decide(situation)
    assert decide(replace(situation, approvals=situation.approvals[::-1])) == decide(situation)


@given(situations_with_approvals(), st.data())
def test_it_stays_the_same_at_every_instant_before_valid_until(
    situation: EvaluationInput, data: st.DataObject
) -> None:
    evaluation = decide(situation)
    until = evaluation.valid_until
    if situation.policy.profile == "pip483":  # the other weighs ages of segments, and is looked at each tick
        last = situation.now + 10**8 if until is None else until - 1
        instant = data.draw(st.integers(situation.now, last))
        assert decide(replace(situation, now=instant)) == evaluation


@given(situations_with_approvals())
def test_when_all_proposals_are_approved_something_goes(situation: EvaluationInput) -> None:
    """Nobody is asked about what would not be done after a yes."""
    evaluation = decide(situation)
    if evaluation.proposals and not evaluation.decisions:
        first = evaluation.proposals[0]
        others = [
            one
            for one in situation.approvals
            if (one.kind, one.segment_ids) != (kind_of(first), sealed_by(first))
        ]
        assert decide(replace(situation, approvals=(*others, known(first, APPROVED)))).decisions
