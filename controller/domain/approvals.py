"""Approvals: their states and transitions, the rule that says which actions of a topic need an approval, and the
effect of the answers.

An approval has a subject: an operation of a topic, a proposal of the bundle balancer, or the promotion of a
candidate. All subjects share the states and transitions. A policy marks the actions that need an approval: actions
that leave fewer segments (`approval_merges`), and actions that seal or create at least `approval_min_segments`
segments. Actions of the consumer lane never need an approval. A marked action is performed after a person has
approved exactly this action.

The `ApprovalGate` of one evaluation checks each action that a profile chooses. `evaluator` excludes the segments of
the held actions and runs the profile again. An approved action must be chosen again before it is performed, so all
limits are checked against the topic at that time. This module calls no other component and reads no clock.
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
"""Milliseconds for which an approval is valid: one hour, because a person approves the action for the topic as it
was shown.
"""

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
TRANSITIONS: Mapping[ApprovalState, frozenset[ApprovalState]] = MappingProxyType(
    {
        _S.PENDING: frozenset({_S.APPROVED, _S.REJECTED, _S.EXPIRED}),
        _S.APPROVED: frozenset({_S.DONE, _S.EXPIRED}),
        _S.REJECTED: frozenset(),
        _S.EXPIRED: frozenset(),
        _S.DONE: frozenset(),
    }
)
"""The states that may follow each state; empty for a final state."""
ANSWERS = frozenset({_S.APPROVED, _S.REJECTED})
"""The states that an answer sets: the answer of a person, or the policy's `approval_default`."""


def demand_transition(before: ApprovalState, after: ApprovalState) -> None:
    """Raise InvariantViolated unless an approval may change from `before` to `after`."""
    if after not in TRANSITIONS[before]:
        raise InvariantViolated(f"an approval that is {before} does not become {after}; read it again")


def states_before(state: ApprovalState) -> list[str]:
    """Return the values of the states from which an approval may enter `state`; empty for `pending`."""
    return [before.value for before, following in TRANSITIONS.items() if state in following]


def why_subject_ended(subject: Subject) -> str:
    """Return why an approval has no subject. The text is for the log and for people. For an operation, the layout
    changed; for a bundle proposal or a promotion, the topic is no longer live.
    """
    if subject is Subject.OPERATION:
        return "the layout changed: the segments are no longer as they were proposed"
    return "the topic is no longer live"


def end_of_wait(
    subject: Subject, state: ApprovalState, default_answer: str, *, has_subject: bool
) -> tuple[ApprovalState, str]:
    """Return the final state of an approval whose time has expired or whose subject has ended, and the reason as
    text.

    An approved action that was not performed expires, and so does an approval without a subject. Otherwise
    `default_answer` applies: `approve` approves, every other value rejects.
    """
    if state is ApprovalState.APPROVED:
        return (
            ApprovalState.EXPIRED,
            "the policy did not choose the action again within an hour of the approval",
        )
    if not has_subject:
        return ApprovalState.EXPIRED, why_subject_ended(subject)
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

    def covers(self, action: Decision) -> bool:
        """Return True if this approval applies to `action`: it has the same kind and seals the same segments, and
        it changes the number of segments in the approved direction, by at most the approved number. A rebucket must
        have exactly the approved number of buckets. The state and the age of the approval have no effect.
        """
        if (self.kind, self.segment_ids) != action_key(action):
            return False
        if isinstance(action, Rebucket):
            return parts_of(action) == self.parts
        change, approved = (parts - len(self.segment_ids) for parts in (parts_of(action), self.parts))
        return min(0, approved) <= change <= max(0, approved)


def kind_of(action: Decision) -> str:
    """Return the kind of the action: `split`, `merge`, `rebucket` or `recut`."""
    return type(action).__name__.lower()


def action_key(action: Decision) -> tuple[str, tuple[int, ...]]:
    """Return the lookup key of an approval: the kind of action and the segments that the action seals."""
    return kind_of(action), sealed_by(action)


def parts_of(action: Decision) -> int:
    """Return the number of segments that the action creates; for a rebucket the number of entry buckets."""
    match action:
        case Merge():
            return 1
        case Rebucket():
            return action.bucket_count
        case Split():
            return len(action.at) + 1 if action.at else 2
        case Recut():
            return len(action.at) + 1


def action_text(action: Decision) -> str:
    """Return a short description of the action: `merge segments 3, 4 into 1`."""
    sealed = sealed_by(action)
    noun = "segment" if len(sealed) == 1 else "segments"
    result = (
        f"to {parts_of(action)} entry buckets" if isinstance(action, Rebucket) else f"into {parts_of(action)}"
    )
    return f"{kind_of(action)} {noun} {', '.join(map(str, sealed))} {result}"


def size_of(action: Decision) -> int:
    """Return the number of segments that the action seals or the number that it creates, whichever is larger."""
    return max(len(sealed_by(action)), 1 if isinstance(action, Rebucket) else parts_of(action))


def requires_approvals(policy: AutoScalePolicy) -> bool:
    """Return True if the policy requires an approval for some actions."""
    return policy.approval_merges or policy.approval_min_segments > 0


def without_approvals(policy: AutoScalePolicy) -> AutoScalePolicy:
    """Return the policy without the requirement of approvals, for a backtest, in which no person can answer."""
    return (
        replace(policy, approval_merges=False, approval_min_segments=0)
        if requires_approvals(policy)
        else policy
    )


def is_marked(policy: AutoScalePolicy, action: Decision) -> bool:
    """Return True if the policy requires an approval for this action: the action leaves fewer segments and
    `approval_merges` is set, or its size is at least `approval_min_segments` (0: no limit).

    An action of the consumer lane is never marked: a consumer that joins would have nothing to read until a person
    has answered.
    """
    if lane_of(action) is Lane.CONSUMER:
        return False
    is_joining = isinstance(action, Merge | Recut) and parts_of(action) < len(sealed_by(action))
    if policy.approval_merges and is_joining:
        return True
    return 0 < policy.approval_min_segments <= size_of(action)


@dataclass(frozen=True, slots=True)
class HeldAction:
    """An action that may not be performed yet. `rejected_at` and `until` are the start and the end of a rejection,
    in milliseconds since the Unix epoch; both are None while the approval is pending or not requested yet.
    """

    action: Decision
    rejected_at: int | None = None
    until: int | None = None

    def refusal(self, lane: Lane, segment_id: int, other_id: int | None) -> Refusal:
        """Return the refusal of a segment that this action would seal: AWAITING_APPROVAL, or APPROVAL_REFUSED until
        the rejection ends. The ids are those of `Refusal`.
        """
        if self.until is None:
            return Refusal(
                segment_id=segment_id,
                lane=lane,
                reason=RefusalReason.AWAITING_APPROVAL,
                metric=kind_of(self.action),
                value=size_of(self.action),
                other_id=other_id,
            )
        return Refusal(
            segment_id=segment_id,
            lane=lane,
            reason=RefusalReason.APPROVAL_REFUSED,
            metric="answered_at",
            value=self.rejected_at,
            needed=self.until,
            not_before=self.until,
            other_id=other_id,
        )

    @property
    def own_refusal(self) -> Refusal:
        """The refusal of the action itself."""
        sealed = sealed_by(self.action)
        return self.refusal(lane_of(self.action), sealed[0], sealed[-1] if len(sealed) > 1 else None)


class ApprovalGate:
    """The approvals of one evaluation: which actions may be performed, and which are held. Used for one call of
    `decide`; `hold_unless_approved` changes the object.

    `now` is in milliseconds since the Unix epoch. `proposals`: held actions for which an approval is to be
    requested; together with the pending approvals at most `MAX_PENDING`. `until`: the earliest end of the approvals
    that let an action pass, in milliseconds since the Unix epoch; None if no approval did.
    """

    def __init__(self, policy: AutoScalePolicy, approvals: Iterable[Approval], now: int) -> None:
        self._policy = policy
        self._approvals = {(approval.kind, approval.segment_ids): approval for approval in approvals}
        self._now = now
        self._pending_count = sum(
            approval.state is ApprovalState.PENDING for approval in self._approvals.values()
        )
        self._held: list[HeldAction] = []
        self.proposals: list[Decision] = []
        self.until: int | None = None

    @property
    def held(self) -> Mapping[int, HeldAction]:
        """The held actions, by the id of each segment that they would seal."""
        return {segment_id: held for held in self._held for segment_id in sealed_by(held.action)}

    def refusals(self, lane_refusals: Iterable[Refusal]) -> tuple[Refusal, ...]:
        """Return the refusal of each held action, except those that `lane_refusals` already contains."""
        reported = {*lane_refusals}
        return tuple(held.own_refusal for held in self._held if held.own_refusal not in reported)

    def hold_unless_approved(self, action: Decision) -> bool:
        """Return False if the action may be performed: it needs no approval, or a valid approval covers it, whose
        end then limits `until`.

        Otherwise add the action to the held actions and return True. If the approval is neither pending nor
        rejected within `approval_hold_seconds`, the action is also added to `proposals`, unless `MAX_PENDING` is
        reached.
        """
        if not is_marked(self._policy, action):
            return False
        approval = self._approvals.get(action_key(action))
        match approval.state if approval is not None else None:
            case ApprovalState.APPROVED if approval is not None and self._is_valid_for(approval, action):
                self.until = min(self.until or self._approved_until(approval), self._approved_until(approval))
                return False
            case ApprovalState.PENDING:
                self._held.append(HeldAction(action))
            case ApprovalState.REJECTED if approval is not None and self._now < self._rejected_until(
                approval
            ):
                self._held.append(HeldAction(action, approval.answered_at, self._rejected_until(approval)))
            case _:
                self._propose(action)
        return True

    def _propose(self, action: Decision) -> None:
        self._held.append(HeldAction(action))
        if self._pending_count < MAX_PENDING:
            self._pending_count += 1
            self.proposals.append(action)

    def _is_valid_for(self, approval: Approval, action: Decision) -> bool:
        return self._now < self._approved_until(approval) and approval.covers(action)

    def _approved_until(self, approval: Approval) -> int:
        return (approval.answered_at or 0) + VALID_MS

    def _rejected_until(self, approval: Approval) -> int:
        return (approval.answered_at or 0) + self._policy.approval_hold_seconds * 1000
