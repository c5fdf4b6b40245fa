"""The rule which actions of a topic need an approval, and which of them are held until a person has answered.

A policy marks the actions that need an approval: actions that leave fewer segments (`approval_merges`), and actions
that seal or create at least `approval_min_segments` segments. Actions of the consumer lane never need an approval. A
marked action is performed after an approval that covers the action (`Approval.covers`) was granted, by a person or by
the default answer.

The `ApprovalGate` of one evaluation checks each action that a profile chooses. `evaluator` excludes the segments of
the held actions and runs the profile again; a held action gives way to an approved one that shares a segment with it.
An approved action must be chosen again before it is performed, so all limits are checked against the topic at that
time. This module calls no other component and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from controller.domain.approval_states import VALID_MS, ApprovalState
from controller.domain.decision import (
    Decision,
    Lane,
    Merge,
    Rebucket,
    Recut,
    Refusal,
    RefusalReason,
    kind_of,
    lane_of,
    parts_of,
    sealed_by,
    size_of,
)
from controller.domain.policy import AutoScalePolicy

MAX_PENDING = 8
"""Maximum number of pending approvals of one topic. Further actions are proposed after some of them are answered."""


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
        """Return True if this approval applies to `action`. The action must have the approval's kind and seal the
        approval's segments.

        A rebucket must also have exactly the approved number of entry buckets. Any other action may change the
        topic's number of segments in the direction that was approved (more or fewer), by at most the approved
        difference; an action that leaves the number unchanged is covered too. The state and the age of the approval
        have no effect.
        """
        if (self.kind, self.segment_ids) != action_key(action):
            return False
        if isinstance(action, Rebucket):
            return parts_of(action) == self.parts
        change, approved = (parts - len(self.segment_ids) for parts in (parts_of(action), self.parts))
        return min(0, approved) <= change <= max(0, approved)


def action_key(action: Decision) -> tuple[str, tuple[int, ...]]:
    """Return the lookup key of an approval: the kind of action and the segments that the action seals."""
    return kind_of(action), sealed_by(action)


def requires_approvals(policy: AutoScalePolicy) -> bool:
    """Return True if the policy requires an approval for any kind of action."""
    return policy.approval_merges or policy.approval_min_segments > 0


def without_approvals(policy: AutoScalePolicy) -> AutoScalePolicy:
    """Return the policy without the requirement of approvals, for a backtest, in which no person can answer."""
    return (
        replace(policy, approval_merges=False, approval_min_segments=0)
        if requires_approvals(policy)
        else policy
    )


def is_marked(policy: AutoScalePolicy, action: Decision) -> bool:
    """Return True if the policy requires an approval for this action. One of two conditions suffices:
    `approval_merges` is set and the action creates fewer segments than it seals; or `approval_min_segments` is above
    0 and the size of the action (`size_of`) is at least `approval_min_segments`.

    An action of the consumer lane never requires an approval: a consumer that joins would have nothing to read until
    a person has answered.
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
        """Return the refusal of a segment that this action would seal; the refusal is not added to a context. If a
        person or the default answer rejected the action, the reason is APPROVAL_REFUSED, and `not_before` is the end
        of the rejection. Otherwise the reason is AWAITING_APPROVAL, with the size of the action as value and without
        an end.

        `lane`, `segment_id` and `other_id` (the neighbour of a pair, or None) become fields of the refusal.
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
        """The refusal in the action's own lane. It names the first segment that the action would seal, and the last
        as `other_id` if there are several.
        """
        sealed = sealed_by(self.action)
        return self.refusal(lane_of(self.action), sealed[0], sealed[-1] if len(sealed) > 1 else None)


class ApprovalGate:
    """The approvals of one evaluation: which actions may be performed, and which are held. Used for one call of
    `decide`; `hold_unless_approved` changes the object.

    `approvals`: the approvals of the topic, one for each kind of action and sealed segments; of several, the last
    counts. `now` is in milliseconds since the Unix epoch. `proposals`: held actions for which an approval is to be
    requested; together with the pending approvals at most `MAX_PENDING`. `until`: the earliest end of the approvals
    that let an action pass or are blocked, in milliseconds since the Unix epoch; None if there is none.
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
        """Return the `own_refusal` of each held action, except refusals that `lane_refusals` already contains."""
        reported = {*lane_refusals}
        return tuple(held.own_refusal for held in self._held if held.own_refusal not in reported)

    def blocked(self) -> list[tuple[int, ...]]:
        """Return the segments of each valid approval that a held action blocks, because both would seal the same
        segment; in ascending order. `until` becomes the earliest end of these approvals, unless it is earlier already.
        """
        held = self.held.keys()
        blocked = [
            approval
            for approval in self._approvals.values()
            if self._is_valid(approval) and not held.isdisjoint(approval.segment_ids)
        ]
        for approval in blocked:
            self._end_with(approval)
        return sorted({approval.segment_ids for approval in blocked})

    def drop_overlapping(self, decisions: Iterable[Decision]) -> None:
        """Remove the held actions and the proposals that would seal a segment of the decisions."""
        sealed = {segment_id for action in decisions for segment_id in sealed_by(action)}
        self._held = [held for held in self._held if sealed.isdisjoint(sealed_by(held.action))]
        self.proposals = [action for action in self.proposals if sealed.isdisjoint(sealed_by(action))]

    def is_allowed(self, action: Decision) -> bool:
        """Return True if the action may be performed: the policy requires no approval for the action (`is_marked`),
        or an approval that covers the action was granted less than `VALID_MS` ago. In the second case `until` becomes
        the end of this approval, unless `until` is earlier already.
        """
        if not is_marked(self._policy, action):
            return True
        approval = self._approvals.get(action_key(action))
        if approval is None or not self._is_valid(approval) or not approval.covers(action):
            return False
        self._end_with(approval)
        return True

    def hold_unless_approved(self, action: Decision) -> bool:
        """Return False if the action may be performed (`is_allowed`).

        Otherwise add the action to `held` and return True. The action is also added to `proposals`, unless the
        topic's approval for the action's kind and segments is pending, or was rejected less than
        `approval_hold_seconds` ago, or `MAX_PENDING` is reached. An approval that is expired or done, that is older
        than `VALID_MS`, or that does not cover the action therefore leads to another proposal.
        """
        if self.is_allowed(action):
            return False
        approval = self._approvals.get(action_key(action))
        match approval.state if approval is not None else None:
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
        """Add the action to the held actions, and to `proposals` unless the pending approvals and the proposals
        together have reached `MAX_PENDING`.
        """
        self._held.append(HeldAction(action))
        if self._pending_count < MAX_PENDING:
            self._pending_count += 1
            self.proposals.append(action)

    def _is_valid(self, approval: Approval) -> bool:
        return approval.state is ApprovalState.APPROVED and self._now < self._approved_until(approval)

    def _end_with(self, approval: Approval) -> None:
        """Set `until` to the end of this approval, unless `until` is earlier already."""
        end = self._approved_until(approval)
        self.until = min(self.until or end, end)

    def _approved_until(self, approval: Approval) -> int:
        """Return the end of an approval that was granted, in milliseconds since the Unix epoch."""
        return (approval.answered_at or 0) + VALID_MS

    def _rejected_until(self, approval: Approval) -> int:
        """Return the time until which a rejected action is not proposed again, in milliseconds since the Unix epoch."""
        return (approval.answered_at or 0) + self._policy.approval_hold_seconds * 1000
