"""Approvals: the state machine of what waits for a person, which acts of a topic wait, and what is known of the answers.

An approval is about a subject: an operation of a topic, a proposal of the bundle balancer, or the promotion of a candidate. The states and
their transitions are the same for all. A policy marks acts: those that leave fewer segments (`approval_merges`), and those above a size
(`approval_min_segments`), but for those of the consumer lane. What is marked goes once somebody approved just that. The
`ApprovalDesk` of one evaluation says so for each act that a profile wants; `evaluator` sets the segments of the others aside and
asks the profile again. An approved act is wanted anew before it goes, so all limits are held against the topic as it is then.
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
"""An approval is of the topic as the person saw it, so it is good for an hour."""

MOST_OPEN = 8
"""Acts of one topic that wait for a person at a time: what is beyond is asked when some are answered."""


class Subject(StrEnum):
    """What an approval is about."""

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
"""The states that follow each state."""
ANSWERS = frozenset({_S.APPROVED, _S.REJECTED})
"""The states that a person, or the default, gives."""


def demand_move(before: ApprovalState, after: ApprovalState) -> None:
    """Raise InvariantViolated for a transition that is none."""
    if after not in MOVES[before]:
        raise InvariantViolated(f"an approval that is {before} does not become {after}; read it again")


def states_before(state: ApprovalState) -> list[str]:
    """Return the states from which an approval may enter the state."""
    return [earlier.value for earlier, later in MOVES.items() if state in later]


def why_gone(subject: Subject) -> str:
    """Return why an approval has no subject."""
    if subject is Subject.OPERATION:
        return "the layout moved on: the segments are no longer as they were proposed"
    return "the topic is no longer live"


def end_of_wait(
    subject: Subject, state: ApprovalState, default_answer: str, *, has_subject: bool
) -> tuple[ApprovalState, str]:
    """Return the state, and the reason, of an approval whose time is over or whose subject is gone."""
    if state is ApprovalState.APPROVED:
        return ApprovalState.EXPIRED, "not wanted within an hour of that"
    if not has_subject:
        return ApprovalState.EXPIRED, why_gone(subject)
    answer = ApprovalState.APPROVED if default_answer == "approve" else ApprovalState.REJECTED
    return answer, "nobody answered in time"


@dataclass(frozen=True, slots=True)
class Approval:
    """The last word on an act of a topic. `segment_ids` are those it seals, in the order of their ranges; `parts` what it makes of
    them, see `parts_of`; `answered_at` in milliseconds since the Unix epoch, None while it is pending.
    """

    kind: str
    segment_ids: tuple[int, ...]
    parts: int
    state: ApprovalState
    answered_at: int | None = None

    def covers(self, act: Decision) -> bool:
        """Whether whoever approved this has approved the act: the same kind on the same segments, which changes their number in the same
        direction and no further.
        """
        if (self.kind, self.segment_ids) != act_key(act):
            return False
        if isinstance(act, Rebucket):
            return parts_of(act) == self.parts
        change, approved = (parts - len(self.segment_ids) for parts in (parts_of(act), self.parts))
        return min(0, approved) <= change <= max(0, approved)


def kind_of(act: Decision) -> str:
    """`split`, `merge`, `rebucket` or `recut`."""
    return type(act).__name__.lower()


def act_key(act: Decision) -> tuple[str, tuple[int, ...]]:
    """What an approval is found by: the kind, and the segments that are sealed."""
    return kind_of(act), sealed_by(act)


def parts_of(act: Decision) -> int:
    """Segments that the act makes; of a rebucket the entry buckets."""
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
    """Return the act in a few words: `merge segments 3, 4 into 1`."""
    sealed = sealed_by(act)
    noun = "segment" if len(sealed) == 1 else "segments"
    made = f"to {parts_of(act)} entry buckets" if isinstance(act, Rebucket) else f"into {parts_of(act)}"
    return f"{kind_of(act)} {noun} {', '.join(map(str, sealed))} {made}"


def size_of(act: Decision) -> int:
    """Segments that the act seals or makes, whichever are more."""
    return max(len(sealed_by(act)), 1 if isinstance(act, Rebucket) else parts_of(act))


def asks(policy: AutoScalePolicy) -> bool:
    """Whether any act waits for a person under this policy."""
    return policy.approval_merges or policy.approval_min_segments > 0


def waived(policy: AutoScalePolicy) -> AutoScalePolicy:
    """The policy as if everybody always approved at once: for a backtest, in which there is nobody to ask."""
    return replace(policy, approval_merges=False, approval_min_segments=0) if asks(policy) else policy


def is_marked(policy: AutoScalePolicy, act: Decision) -> bool:
    """Whether the act waits for a person. What a consumer's coming or going asks for never does: who comes would get nothing to read
    until somebody has looked.
    """
    if lane_of(act) is Lane.CONSUMER:
        return False
    joins = isinstance(act, Merge | Recut) and parts_of(act) < len(sealed_by(act))
    if policy.approval_merges and joins:
        return True
    return 0 < policy.approval_min_segments <= size_of(act)


@dataclass(frozen=True, slots=True)
class HeldAct:
    """An act that may not go now. `refused_at` and `until`: when it was refused and until when that holds; None of one
    that waits for its answer.
    """

    act: Decision
    refused_at: int | None = None
    until: int | None = None

    def refusal(self, lane: Lane, segment_id: int, other_id: int | None) -> Refusal:
        """Why the segment is left alone; ids as in `Refusal`."""
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
        """The refusal of the act itself."""
        sealed = sealed_by(self.act)
        return self.refusal(lane_of(self.act), sealed[0], sealed[-1] if len(sealed) > 1 else None)


class ApprovalDesk:
    """What may go in one evaluation, and what is held. Lives for one call of `decide`.

    `proposals`: held acts that nobody was asked about yet. `until`: when an approval that was used is over; None where
    none was.
    """

    def __init__(self, policy: AutoScalePolicy, known: Iterable[Approval], now: int) -> None:
        self._policy = policy
        self._known = {(one.kind, one.segment_ids): one for one in known}
        self._now = now
        self._open = sum(one.state is ApprovalState.PENDING for one in self._known.values())
        self._held: list[HeldAct] = []
        self.proposals: list[Decision] = []
        self.until: int | None = None

    @property
    def held(self) -> Mapping[int, HeldAct]:
        """The acts that are held, by each segment they would seal."""
        return {segment_id: one for one in self._held for segment_id in sealed_by(one.act)}

    def refusals(self, said: Iterable[Refusal]) -> tuple[Refusal, ...]:
        """One for each held act, but for those that the lanes have `said` themselves."""
        told = {*said}
        return tuple(one.own_refusal for one in self._held if one.own_refusal not in told)

    def holds(self, act: Decision) -> bool:
        """Whether the act may not go; it is then among those held."""
        if not is_marked(self._policy, act):
            return False
        known = self._known.get(act_key(act))
        match known.state if known is not None else None:
            case ApprovalState.APPROVED if known is not None and self._is_good(known, act):
                self.until = min(self.until or self._end(known), self._end(known))
                return False
            case ApprovalState.PENDING:
                self._held.append(HeldAct(act))
            case ApprovalState.REJECTED if known is not None and self._now < self._end_of_hold(known):
                self._held.append(HeldAct(act, known.answered_at, self._end_of_hold(known)))
            case _:
                self._propose(act)
        return True

    def _propose(self, act: Decision) -> None:
        self._held.append(HeldAct(act))
        if self._open < MOST_OPEN:
            self._open += 1
            self.proposals.append(act)

    def _is_good(self, known: Approval, act: Decision) -> bool:
        return self._now < self._end(known) and known.covers(act)

    def _end(self, known: Approval) -> int:
        return (known.answered_at or 0) + VALID_MS

    def _end_of_hold(self, known: Approval) -> int:
        return (known.answered_at or 0) + self._policy.approval_hold_seconds * 1000
