"""Approvals: their subjects, states and transitions, when an approval lapses, and which approvals a request may answer.

An approval has a subject: an operation of a topic, a proposal of the bundle balancer, or the promotion of a
candidate. All subjects share the states and transitions. `approval_rule` decides which actions of a topic need an
approval. This module calls no other component and reads no clock.

A pending approval lapses at its `expires_at`, for an operation `approval_wait_seconds` of the policy after the
proposal; then the default is its answer. An approved operation lapses `VALID_MS` after the answer. A pending approval
also lapses when its subject is gone. `services.approval_answers` applies these rules to the rows that `store.approvals`
finds.

Rights apply to a level of the policies, so a request for a level must not reach beyond its own (`covers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from controller.domain.errors import InvariantViolated
from controller.domain.names import CLUSTER


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


VALID_MS = 3_600_000
"""Milliseconds for which an approval is valid: one hour, because a person approves the action for the topic as it
was shown.
"""


def why_subject_ended(subject: Subject) -> str:
    """Return as text why an approval with this kind of subject has lost its subject: for an operation, the layout
    changed; for a bundle proposal or a promotion, the topic is no longer live.
    """
    if subject is Subject.OPERATION:
        return "the layout changed: the segments are no longer as they were proposed"
    return "the topic is no longer live"


def end_of_wait(
    subject: Subject, state: ApprovalState, default_answer: str, *, has_subject: bool
) -> tuple[ApprovalState, str]:
    """Return the next state of an approval whose time is over or whose subject has ended, and the reason as text.
    Nothing is stored. `state` is the present state: pending or, for an operation only, approved.

    An approval in the state approved expires, whether or not it still has its subject. A pending approval expires if
    its subject has ended (`has_subject` False). Any other pending approval gets the answer `default_answer`: the
    value `approve` approves, and every other value rejects.
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


def covers(requested_level: str | None, level: str) -> bool:
    """Return True if a request for `requested_level` may answer an approval of `level`: the cluster covers every approval, a namespace
    (`tenant/namespace`) covers approvals of the namespace and of its topics, and a topic its own. A request without a level covers all
    approvals except approvals of the cluster.
    """
    if requested_level is None:
        return level != CLUSTER
    return requested_level in (CLUSTER, level) or level.startswith(f"topic://{requested_level}/")
