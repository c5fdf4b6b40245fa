"""Approvals: their subjects, states and transitions.

An approval has a subject: an operation of a topic, a proposal of the bundle balancer, or the promotion of a
candidate. All subjects share the states and transitions. `approval_rule` decides which actions of a topic need an
approval, and `approval_expiry` when an approval ends without its action. This module calls no other component and
reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from controller.domain.errors import InvariantViolated


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
