"""Approvals: their state machine, the rule which actions of a topic need one, and the effect of the answers.

An approval has a subject: an operation of a topic, a proposal of the bundle balancer, or the promotion of a
candidate. All subjects share the states and transitions. A policy marks the actions that need an approval: actions
that leave fewer segments (`approval_merges`) and actions above a size (`approval_min_segments`). Actions of the
consumer lane never need one. A marked action is performed after a person has approved exactly this action. The
`ApprovalGate` of one evaluation checks each action that a profile chooses; `evaluator` excludes the segments of the
held actions and runs the profile again. An approved action must be chosen again before it is performed, so all limits
are checked against the topic at that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from controller.domain.decision import (
    Decision,
    Lane,
    Merge,
    Rebucket,
    Recut,
    Refusal,
    RefusalReason,
    Split,
    lane_of,
    sealed_by,
)
from controller.domain.errors import InvariantViolated
from controller.domain.policy import AutoScalePolicy

VALID_MS = 3_600_000
"""Milliseconds for which an approval is valid: one hour, because a person approves the topic as it was shown."""

MAX_PENDING = 8
"""Maximum number of pending approvals of one topic. Further actions are proposed after some of them are answered."""


class Subject(StrEnum):
    """Subject of an approval."""

    OPERATION = "operation"
    BUNDLE_PROPOSAL = "bundle-proposal"
    PROMOTION = "promotion"


class ApprovalState(StrEnum):
    """The state of an approval. It begins as pending."""

    PENDING = "pending"
    APPROVED = "approved"  # the action may be carried out
    REJECTED = "rejected"
    EXPIRED = "expired"  # the subject is gone, or an approved action was not carried out in time
    DONE = "done"  # the approved action was carried out


_S = ApprovalState
MOVES: Mapping[ApprovalState, frozenset[ApprovalState]] = MappingProxyType(
    {
        _S.PENDING: frozenset({_S.APPROVED, _S.REJECTED, _S.EXPIRED}),
        _S.APPROVED: frozenset({_S.DONE, _S.EXPIRED}),
        _S.REJECTED: frozenset(),
        _S.EXPIRED: frozenset(),
        _S.DONE: frozenset(),
    }
)
"""The states that may follow each state."""
ANSWERS = frozenset({_S.APPROVED, _S.REJECTED})
"""The states that a person or the default answer sets."""


def demand_move(before: ApprovalState, after: ApprovalState) -> None:
    """Raise InvariantViolated unless an approval may change from `before` to `after`."""
    if after not in MOVES[before]:
        raise InvariantViolated(f"an approval that is {before} does not become {after}; read it again")


def states_before(state: ApprovalState) -> list[str]:
    """Return the states from which an approval may enter `state`."""
    return [before.value for before, following in MOVES.items() if state in following]


def why_gone(subject: Subject) -> str:
    """Return the reason why the subject of an approval no longer exists."""
    if subject is Subject.OPERATION:
        return "the layout changed: the segments are no longer as they were proposed"
    return "the topic is no longer live"


def end_of_wait(
    subject: Subject, state: ApprovalState, default_answer: str, *, has_subject: bool
) -> tuple[ApprovalState, str]:
    """Return the final state, and the reason, of an approval whose time has expired or whose subject no longer exists."""
    if state is ApprovalState.APPROVED:
        return (
            ApprovalState.EXPIRED,
            "the policy did not choose the action again within an hour of the approval",
        )
    if not has_subject:
        return ApprovalState.EXPIRED, why_gone(subject)
    answer = ApprovalState.APPROVED if default_answer == "approve" else ApprovalState.REJECTED
    return answer, "no answer was given in time"


@dataclass(frozen=True, slots=True)
class Approval:
    """The latest approval of an action of a topic. `segment_ids` are the segments that the action seals, in the order of
    their ranges; `parts` is the number of parts as `parts_of` counts them; `answered_at` is in milliseconds since the
    Unix epoch, None while the approval is pending.
    """

    kind: str
    segment_ids: tuple[int, ...]
    parts: int
    state: ApprovalState
    answered_at: int | None = None

    def covers(self, act: Decision) -> bool:
        """Return True if this approval includes `act`: the same kind of action on the same segments, which changes the
        number of segments in the same direction and by at most as many.
        """
        if (self.kind, self.segment_ids) != action_key(act):
            return False
        if isinstance(act, Rebucket):
            return parts_of(act) == self.parts
        change, approved = (parts - len(self.segment_ids) for parts in (parts_of(act), self.parts))
        return min(0, approved) <= change <= max(0, approved)


def kind_of(act: Decision) -> str:
    """Return the kind of the action: `split`, `merge`, `rebucket` or `recut`."""
    return type(act).__name__.lower()


def action_key(act: Decision) -> tuple[str, tuple[int, ...]]:
    """Return the lookup key of an approval: the kind of action and the segments that the action seals."""
    return kind_of(act), sealed_by(act)


def parts_of(act: Decision) -> int:
    """Return the number of segments that the action creates; for a rebucket the number of entry buckets."""
    match act:
        case Merge():
            return 1
        case Rebucket():
            return act.bucket_count
        case Split():
            return len(act.at) + 1 if act.at else 2
        case Recut():
            return len(act.at) + 1


def action_text(act: Decision) -> str:
    """Return a short description of the action: `merge segments 3, 4 into 1`."""
    sealed = sealed_by(act)
    noun = "segment" if len(sealed) == 1 else "segments"
    result = f"to {parts_of(act)} entry buckets" if isinstance(act, Rebucket) else f"into {parts_of(act)}"
    return f"{kind_of(act)} {noun} {', '.join(map(str, sealed))} {result}"


def size_of(act: Decision) -> int:
    """Return the number of segments that the action seals or the number that it creates, whichever is larger."""
    return max(len(sealed_by(act)), 1 if isinstance(act, Rebucket) else parts_of(act))


def asks(policy: AutoScalePolicy) -> bool:
    """Return True if the policy requires an approval for any action."""
    return policy.approval_merges or policy.approval_min_segments > 0


def waived(policy: AutoScalePolicy) -> AutoScalePolicy:
    """Return the policy without approvals, for a backtest, in which no person can answer."""
    return replace(policy, approval_merges=False, approval_min_segments=0) if asks(policy) else policy


def is_marked(policy: AutoScalePolicy, act: Decision) -> bool:
    """Return True if the action needs an approval. An action of the consumer lane never does: a consumer that joins
    would have nothing to read until a person has answered.
    """
    if lane_of(act) is Lane.CONSUMER:
        return False
    is_joining = isinstance(act, Merge | Recut) and parts_of(act) < len(sealed_by(act))
    if policy.approval_merges and is_joining:
        return True
    return 0 < policy.approval_min_segments <= size_of(act)


@dataclass(frozen=True, slots=True)
class HeldAction:
    """An action that may not be performed yet. `refused_at` and `until` are the start and the end of a rejection, in
    milliseconds since the Unix epoch; both are None while the approval is pending.
    """

    act: Decision
    refused_at: int | None = None
    until: int | None = None

    def refusal(self, lane: Lane, segment_id: int, other_id: int | None) -> Refusal:
        """Return the refusal of a segment that this action would seal; ids as in `Refusal`."""
        if self.until is None:
            return Refusal(
                segment_id=segment_id,
                lane=lane,
                reason=RefusalReason.AWAITING_APPROVAL,
                metric=kind_of(self.act),
                value=size_of(self.act),
                other_id=other_id,
            )
        return Refusal(
            segment_id=segment_id,
            lane=lane,
            reason=RefusalReason.APPROVAL_REFUSED,
            metric="answered_at",
            value=self.refused_at,
            needed=self.until,
            not_before=self.until,
            other_id=other_id,
        )

    @property
    def own_refusal(self) -> Refusal:
        """The refusal of the action itself."""
        sealed = sealed_by(self.act)
        return self.refusal(lane_of(self.act), sealed[0], sealed[-1] if len(sealed) > 1 else None)


class ApprovalGate:
    """The approvals of one evaluation: which actions may be performed, and which are held. Used for one call of
    `decide`.

    `proposals`: held actions for which no approval has been requested. `until`: the earliest end of the approvals
    that the evaluation used, in milliseconds since the Unix epoch; None if the evaluation used no approval.
    """

    def __init__(self, policy: AutoScalePolicy, approvals: Iterable[Approval], now: int) -> None:
        self._policy = policy
        self._approvals = {(approval.kind, approval.segment_ids): approval for approval in approvals}
        self._now = now
        self._open = sum(approval.state is ApprovalState.PENDING for approval in self._approvals.values())
        self._held: list[HeldAction] = []
        self.proposals: list[Decision] = []
        self.until: int | None = None

    @property
    def held(self) -> Mapping[int, HeldAction]:
        """The held actions, by each segment that they would seal."""
        return {segment_id: held for held in self._held for segment_id in sealed_by(held.act)}

    def refusals(self, lane_refusals: Iterable[Refusal]) -> tuple[Refusal, ...]:
        """Return the refusal of each held action, except those that `lane_refusals` already contains."""
        reported = {*lane_refusals}
        return tuple(held.own_refusal for held in self._held if held.own_refusal not in reported)

    def holds(self, act: Decision) -> bool:
        """Return True if the action may not be performed. The action is then one of the held actions."""
        if not is_marked(self._policy, act):
            return False
        approval = self._approvals.get(action_key(act))
        match approval.state if approval is not None else None:
            case ApprovalState.APPROVED if approval is not None and self._is_good(approval, act):
                self.until = min(self.until or self._end(approval), self._end(approval))
                return False
            case ApprovalState.PENDING:
                self._held.append(HeldAction(act))
            case ApprovalState.REJECTED if approval is not None and self._now < self._end_of_hold(approval):
                self._held.append(HeldAction(act, approval.answered_at, self._end_of_hold(approval)))
            case _:
                self._propose(act)
        return True

    def _propose(self, act: Decision) -> None:
        self._held.append(HeldAction(act))
        if self._open < MAX_PENDING:
            self._open += 1
            self.proposals.append(act)

    def _is_good(self, approval: Approval, act: Decision) -> bool:
        return self._now < self._end(approval) and approval.covers(act)

    def _end(self, approval: Approval) -> int:
        return (approval.answered_at or 0) + VALID_MS

    def _end_of_hold(self, approval: Approval) -> int:
        return (approval.answered_at or 0) + self._policy.approval_hold_seconds * 1000
