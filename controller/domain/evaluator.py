"""`decide`: a situation goes in, acts and reasons come out. It is pure, so any decision can be replayed.

What is asked of every topic stands here: is it enabled, is somebody else deciding, is its policy valid. Then the
policy's profile answers: `adaptive`, or `pip483`, which gives Pulsar 5's answers (PIP-483, PIP-486) with deliberate
differences. `strict_pulsar` turns off all but the last:

- A segment of width 1 is refused, and the next candidate is tried.
- Coldness is a sum of rate ÷ threshold, not of raw rates.
- "Cold since" is a stored fact, not the time of the last write.
- Merge depth is stored, so pruning cannot erode its cap.
- A merge that would be split again is refused.
- A reading older than the policy's limit is neither hot nor cold.
- Entry buckets that nobody needs are given up after a while.
- Where consumers cannot share a segment, the guard of PIP-486 that no merge may idle a consumer counts segments
  instead of buckets.
- There, too, the consumer lane splits where Pulsar would give a segment more buckets, which would serve nobody.

Ties go by range, in the consumer lane by id. Its splits are at the midpoint. The autoscaler acts on the verdict.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from controller.domain.approvals import ApprovalDesk, asks
from controller.domain.decision import Evaluation, Lane, Refusal, RefusalReason
from controller.domain.lanes.ground import Ground
from controller.domain.policy import AutoScalePolicy, Violation, violations
from controller.domain.policy_parameters import misfit
from controller.domain.profiles.registry import PROFILES_BY_NAME
from controller.domain.situation import Situation

_UNKNOWN = "none-1"  # what is answered where the policy names no profile there is


def code_version(policy: AutoScalePolicy) -> str:
    """Version of the rules that answer for this policy, stored in the ledger. A profile raises its own whenever the
    same situation could have another answer.
    """
    profile = PROFILES_BY_NAME.get(policy.profile)
    return _UNKNOWN if profile is None else profile.code_version


ALL_LANES = frozenset(Lane)


def decide(situation: Situation, lanes: Collection[Lane] = ALL_LANES) -> Evaluation:
    """What to do about one topic now; never raises for an invalid policy, which counts as disabled.

    Every segment above its capacity, and every run of neighbours with capacity to give back, that is left alone has a
    refusal. A lane that is not asked adds nothing, and `valid_until` holds for the lanes asked.
    """
    policy = situation.policy
    if not policy.enabled:
        return Evaluation(refusals=(Refusal(None, None, RefusalReason.DISABLED, "enabled"),))
    if situation.foreign_controller:  # two controllers would undo each other's acts
        return Evaluation(refusals=(Refusal(None, None, RefusalReason.FOREIGN_CONTROLLER),))
    if situation.is_held:
        return Evaluation(refusals=(Refusal(None, None, RefusalReason.TOPIC_HELD),))
    broken = _violations(_Same(policy))
    if broken:
        return Evaluation(refusals=tuple(map(_of_violation, broken)))
    if asks(policy):
        return _with_approvals(situation, lanes)
    ground = Ground(situation)
    decisions = PROFILES_BY_NAME[policy.profile].answer(ground, lanes)
    return Evaluation(decisions, tuple(ground.refusals), ground.valid_until)


MOST_ROUNDS = 32
"""How often a profile is asked again with the segments of held acts set aside; the rest of them wait for the next evaluation."""


def _with_approvals(situation: Situation, lanes: Collection[Lane]) -> Evaluation:
    """The profile's acts but for those that wait for a person, with what it does elsewhere in the topic meanwhile."""
    profile = PROFILES_BY_NAME[situation.policy.profile]
    desk = ApprovalDesk(situation.policy, situation.approvals, situation.now)
    ends: list[int | None] = []
    rounds = 0
    while True:
        ground = Ground(situation, desk.held)
        wanted = profile.answer(ground, lanes)
        decisions = tuple(act for act in wanted if not desk.holds(act))
        ends += (ground.valid_until, desk.until)
        rounds += 1
        if len(decisions) == len(wanted) or rounds == MOST_ROUNDS:
            break
    own = desk.refusals(ground.refusals)
    ends += (one.not_before for one in own)
    until = min((end for end in ends if end is not None), default=None)
    return Evaluation(decisions, (*ground.refusals, *own), until, tuple(desk.proposals))


class _Same:
    """A policy that is equal to itself alone: what is checked once is not checked again at each tick, or for each topic that shares
    it. Equal policies may differ in the types of their parameters.
    """

    __slots__ = ("policy",)

    def __init__(self, policy: AutoScalePolicy) -> None:
        self.policy = policy

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.policy is other.policy

    def __hash__(self) -> int:
        return id(self.policy)


@lru_cache(maxsize=256)
def _violations(same: _Same) -> tuple[Violation, ...]:
    return violations(same.policy)


def _of_violation(violation: Violation) -> Refusal:
    """The parameter with its value; where that is no number, the sentence in the parameter's place."""
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
