"""`decide` evaluates an input and returns actions and refusals. The function is pure, so every decision can be replayed.

This module checks what applies to every topic: whether the policy is enabled and valid, and whether another
controller decides for the topic. Then the policy's profile decides: `adaptive`, or `pip483`, which gives Pulsar 5's
answers (PIP-483, PIP-486) with deliberate differences. `strict_pulsar` turns off all of these differences but the
last:

- A segment of width 1 is refused, and the next candidate is tried.
- Coldness is a sum of rate ÷ threshold, not of raw rates.
- "Cold since" is a stored fact, not the time of the last write.
- Merge depth is stored, so pruning cannot erode its limit.
- A merge that would be split again is refused.
- A reading older than the policy's limit is neither hot nor cold.
- Entry buckets that no consumer needs are given up after a while.
- If consumers cannot share a segment, the rule of PIP-486 that no merge may leave a consumer without a place counts
  segments instead of buckets.
- In this case, the consumer lane also splits where Pulsar would give a segment more buckets, which no consumer could
  use.

Ties are resolved by range, in the consumer lane by id. The consumer lane splits at the midpoint. The autoscaler
performs the actions.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from controller.domain.approvals import ApprovalGate, asks
from controller.domain.decision import Evaluation, Lane, Refusal, RefusalReason
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.lanes.evaluation_context import EvaluationContext
from controller.domain.policy import AutoScalePolicy, Violation, violations
from controller.domain.policy_parameters import misfit
from controller.domain.profiles.registry import PROFILES_BY_NAME

_UNKNOWN = "none-1"  # the version if the policy names an unknown profile


def code_version(policy: AutoScalePolicy) -> str:
    """Return the version of the rules that apply under this policy, as the decision log stores it. A profile raises its
    version whenever the same input could give another result.
    """
    profile = PROFILES_BY_NAME.get(policy.profile)
    return _UNKNOWN if profile is None else profile.code_version


ALL_LANES = frozenset(Lane)


def decide(situation: EvaluationInput, lanes: Collection[Lane] = ALL_LANES) -> Evaluation:
    """Return the evaluation of one topic. Never raises for an invalid policy, which counts as disabled.

    Every segment above its capacity, and every run of neighbours with spare capacity, that is left unchanged has a
    refusal. A lane that is not evaluated contributes nothing, and `valid_until` refers to the evaluated lanes.
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
    if asks(policy):
        return _with_approvals(situation, lanes)
    ground = EvaluationContext(situation)
    decisions = PROFILES_BY_NAME[policy.profile].answer(ground, lanes)
    return Evaluation(decisions, tuple(ground.refusals), ground.valid_until)


MOST_ROUNDS = 32
"""Maximum number of times that a profile decides with the segments of held actions excluded; the remaining actions wait
for the next evaluation.
"""


def _with_approvals(situation: EvaluationInput, lanes: Collection[Lane]) -> Evaluation:
    """Return the profile's evaluation without the actions that need an approval, and with the actions that the profile
    chooses elsewhere in the topic meanwhile.
    """
    profile = PROFILES_BY_NAME[situation.policy.profile]
    approvals = ApprovalGate(situation.policy, situation.approvals, situation.now)
    ends: list[int | None] = []
    rounds = 0
    while True:
        ground = EvaluationContext(situation, approvals.held)
        chosen = profile.answer(ground, lanes)
        decisions = tuple(act for act in chosen if not approvals.holds(act))
        ends += (ground.valid_until, approvals.until)
        rounds += 1
        if len(decisions) == len(chosen) or rounds == MOST_ROUNDS:
            break
    held_refusals = approvals.refusals(ground.refusals)
    ends += (refusal.not_before for refusal in held_refusals)
    until = min((end for end in ends if end is not None), default=None)
    return Evaluation(decisions, (*ground.refusals, *held_refusals), until, tuple(approvals.proposals))


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
    return violations(identity.policy)


def _violation_refusal(violation: Violation) -> Refusal:
    """Return the refusal with the parameter and its value; if the value is not a number, with the sentence in place of
    the parameter.
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
    if isinstance(value, bool) or not isinstance(value, int | float) or misfit(value, float) is not None:
        return None
    return value
