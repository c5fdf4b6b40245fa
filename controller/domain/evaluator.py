"""`decide` evaluates an input and returns actions and refusals. The function is pure, so every decision can be
replayed.

This module checks what applies to every topic: whether the policy is enabled and valid, whether another controller
decides for the topic, whether the topic is held, and which actions need an approval. Then the policy's profile
decides: `adaptive`, or `pip483`, which gives Pulsar 5's answers (PIP-483, PIP-486) with deliberate differences.
`strict_pulsar` turns off all of these differences except the last, a split where consumers cannot share a segment:

- A segment of width 1 is refused, and the next candidate is tried.
- Coldness is a sum of rate ÷ threshold, not of raw rates.
- "Cold since" is a stored fact, not the time of the last write.
- Merge depth is stored, so pruning cannot erode its limit.
- A merge that would be split again is refused.
- A load record older than the policy's limit is neither hot nor cold.
- Entry buckets that no consumer needs are given up after a while.
- If consumers cannot share a segment, the rule of PIP-486 that no merge may leave a consumer without a place counts
  segments instead of buckets.
- If consumers cannot share a segment, the consumer lane also splits where Pulsar would give a segment more buckets,
  which no consumer could use.

Ties are resolved by range, in the consumer lane by id. The consumer lane splits at the midpoint. The autoscaler
performs the actions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from controller.domain.approval_rule import ApprovalGate, requires_approvals
from controller.domain.decision import Decision, Evaluation, Lane, Refusal, RefusalReason, sealed_by
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.policy import AutoScalePolicy, Violation, violations
from controller.domain.policy_parameters import misfit
from controller.domain.profiles import adaptive, pip483
from controller.domain.profiles.evaluation_context import EvaluationContext


class Profile(NamedTuple):
    """A rule set. `answer` takes the context of an evaluation under a valid policy, and the lanes to evaluate. It returns
    actions on disjoint segments, and adds its refusals to the context.
    """

    answer: Callable[[EvaluationContext, Collection[Lane]], tuple[Decision, ...]]
    code_version: str


PROFILES_BY_NAME: Mapping[str, Profile] = MappingProxyType(
    {
        "adaptive": Profile(adaptive.answer, adaptive.CODE_VERSION),
        "pip483": Profile(pip483.answer, pip483.CODE_VERSION),
    }
)
"""Every profile that `policy.PROFILES` names."""

_UNKNOWN = "none-1"  # the version if the policy names an unknown profile


def code_version(policy: AutoScalePolicy) -> str:
    """Return the version of the rules that apply under this policy, as the decision log stores it; `none-1` for an
    unknown profile. A profile raises its version whenever the same input could give another result.
    """
    profile = PROFILES_BY_NAME.get(policy.profile)
    return _UNKNOWN if profile is None else profile.code_version


ALL_LANES = frozenset(Lane)


def decide(situation: EvaluationInput, lanes: Collection[Lane] = ALL_LANES) -> Evaluation:
    """Return the evaluation of one topic: actions and refusals. Nothing is performed or stored. `lanes`: the lanes to
    evaluate. A lane that is not evaluated contributes no action and no refusal, and has no effect on `valid_until`.

    The result has no action in four cases, which are checked in this order: the policy is disabled, another
    controller decides for the topic, the topic is held, or the policy is invalid. The refusals then name no segment
    and no lane and say why: one refusal, or for an invalid policy one refusal for each broken rule.

    Otherwise the policy's profile chooses the actions. The profile also returns refusals for the segments above their
    capacity, and for the neighbours with spare capacity, that it leaves unchanged. An action for which the policy
    requires an approval, but for which no valid approval exists, is refused instead of chosen. Such an action is also
    in `proposals` if its approval is to be requested.
    """
    policy = situation.policy
    if not policy.enabled:
        return Evaluation(refusals=(Refusal(None, None, RefusalReason.DISABLED, "enabled"),))
    if situation.foreign_controller:  # two controllers would undo each other's actions
        return Evaluation(refusals=(Refusal(None, None, RefusalReason.FOREIGN_CONTROLLER),))
    if situation.is_held:
        return Evaluation(refusals=(Refusal(None, None, RefusalReason.TOPIC_HELD),))
    broken_rules = _violations(_PolicyIdentity(policy))
    if broken_rules:
        return Evaluation(refusals=tuple(map(_violation_refusal, broken_rules)))
    if requires_approvals(policy):
        return _with_approvals(situation, lanes)
    context = EvaluationContext(situation)
    decisions = PROFILES_BY_NAME[policy.profile].answer(context, lanes)
    return Evaluation(decisions, tuple(context.refusals), context.valid_until)


MOST_ROUNDS = 32
"""Maximum number of times that a profile decides in one evaluation, each time with the segments of the held actions
excluded. If actions of the last time are held again, other segments wait for the next evaluation.
"""


def _with_approvals(situation: EvaluationInput, lanes: Collection[Lane]) -> Evaluation:
    """Return the evaluation under a policy that requires approvals. The policy's profile decides. If an action must
    be held, because the policy requires an approval for the action and no valid approval exists, the profile decides
    again without the segments of the held actions. This is repeated until no action must be held, in at most
    `MOST_ROUNDS` rounds.

    If a held action blocks an approved one, because both seal the same segment, the profile decides once more with
    the segments of the approved action. If the profile then chooses the approved action, this is the last round, and
    held actions that share a segment with its actions are left out. Otherwise the last round is the one before.

    The decisions are those of the last round, without held actions. The refusals are the profile's refusals of the
    last round, and one refusal of each action that was held in any round. `proposals` has the held actions whose
    approval is to be requested. The evaluation is valid until the earliest of these times: the end of validity of any
    round, of an approval that was used or blocked, or of a rejection.
    """
    profile = PROFILES_BY_NAME[situation.policy.profile]
    approvals = ApprovalGate(situation.policy, situation.approvals, situation.now)
    ends: list[int | None] = []
    rounds = 0
    while True:
        context = EvaluationContext(situation, approvals.held)
        chosen = profile.answer(context, lanes)
        decisions = tuple(action for action in chosen if not approvals.hold_unless_approved(action))
        ends.append(context.valid_until)
        rounds += 1
        if len(decisions) == len(chosen) or rounds == MOST_ROUNDS:
            break
    ends += (refusal.not_before for refusal in approvals.refusals(()))
    for segment_ids in approvals.blocked():
        held = {i: action for i, action in approvals.held.items() if i not in segment_ids}
        last = EvaluationContext(situation, held)
        allowed = tuple(filter(approvals.is_allowed, profile.answer(last, lanes)))
        ends.append(last.valid_until)
        if segment_ids in map(sealed_by, allowed):
            context, decisions = last, allowed
            approvals.drop_overlapping(decisions)
            break
    held_refusals = approvals.refusals(context.refusals)
    ends.append(approvals.until)
    until = min((end for end in ends if end is not None), default=None)
    return Evaluation(decisions, (*context.refusals, *held_refusals), until, tuple(approvals.proposals))


class _PolicyIdentity:
    """A cache key that is equal only for the same policy object, so that a policy is validated once and not at each tick
    or for each topic that shares the object. Equal policies may differ in the types of their parameters.
    """

    __slots__ = ("policy",)

    def __init__(self, policy: AutoScalePolicy) -> None:
        self.policy = policy

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PolicyIdentity) and self.policy is other.policy

    def __hash__(self) -> int:
        return id(self.policy)


@lru_cache(maxsize=256)
def _violations(identity: _PolicyIdentity) -> tuple[Violation, ...]:
    """Return the rules that the policy violates. The result for a policy object is cached."""
    return violations(identity.policy)


def _violation_refusal(violation: Violation) -> Refusal:
    """Return the refusal of the whole topic for a rule that the policy breaks: `metric` is the parameter, `value` its
    value and `needed` its bound. If the value is not a number, `metric` is the violation as a sentence and `value` is
    None.
    """
    number = _number(violation.value)
    return Refusal(
        segment_id=None,
        lane=None,
        reason=RefusalReason.INVALID_POLICY,
        metric=str(violation) if number is None else violation.parameter,
        value=number,
        needed=violation.needed,
    )


def _number(value: object) -> float | None:
    """Return the value if it is a number that fits into a float, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or misfit(value, float) is not None:
        return None
    return value
