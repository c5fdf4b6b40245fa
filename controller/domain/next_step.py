"""Chooses the next step of an operation, from its row and the state that the runner has observed.

This module decides the order only: it calls no other component and reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.domain.operation import Operation, OperationKind, OperationState
from controller.domain.operation_abort import can_give_up, is_abortable
from controller.domain.operation_steps import Step, moves_of

WAITS_BEFORE: Mapping[OperationKind, OperationState] = {
    OperationKind.SEEK: OperationState.INTENDED,
    OperationKind.DELETE: OperationState.INTENDED,
    OperationKind.DETACH: OperationState.INTENDED,
    OperationKind.SUBSCRIPTION_DELETE: OperationState.INTENDED,
}
"""Kinds that wait until older operations of the topic have ended, and the state in which they wait: a seek waits for
those of its subscription, the other kinds for all.

Seeks of one subscription run in sequence, so that the last one requested determines the position. A running reshape
would bring back what is being deleted: logs of a deleted topic, or the cursor of a deleted subscription on children
that were planned before the deletion was known.
"""


@dataclass(frozen=True, slots=True)
class Observed:
    """The state that the runner has just read. A step is chosen from this state and the row, never from memory."""

    now_ms: int
    subscription_version: int
    age_ms: int = 0
    """Milliseconds since the operation's intent."""
    topic_epoch: int = 0
    """Layout epoch of the topic. The operation commits a later epoch."""
    other_live_operations: int = 0
    """Number of older live operations of the topic (smaller id); for a seek, of its subscription only. An operation
    waits for these only, so two operations never wait for each other.
    """
    readers: int = 0
    """For a seek: number of buckets that have an owner whose time to release them is not over."""
    abort_requested: bool = False
    is_refused: bool = False
    """True if the data plane has refused the next step permanently, or for longer than the limit after which a refusal
    counts as permanent.
    """
    abort_reason: str = ""
    """The requester and the reason of the abort; empty if no reason was given."""
    live_subscriptions: tuple[str, ...] = ()
    """Recorded subscriptions at `subscription_version`."""
    ending_subscriptions: tuple[str, ...] = ()
    """Subscriptions that are being deleted. New logs do not get them, even if a parent still has them."""
    stock_subscriptions: tuple[str, ...] = ()
    """Live subscriptions that standard consumers read: new logs have a gate for each of them."""


def next_step(operation: Operation, observed: Observed) -> tuple[Step, OperationState]:
    """Return the step to perform, and the state to record when the step has succeeded. Step.WAIT and
    Step.SYNC_SUBSCRIPTIONS keep the state. Nothing is performed or stored.

    The first rule that applies decides:

    Step.ABORT, if the data plane refuses the next step permanently and the operation can be given up (`can_give_up`);
    also if an abort is requested or the deadline is over, and the operation may be aborted (`is_abortable`). The
    deadline of a seek has no effect.

    Step.WAIT, if the operation has a kind and a state of `WAITS_BEFORE` and older operations are live, or if the
    operation is in the state INTENDED and buckets still have readers.

    Step.SYNC_SUBSCRIPTIONS, if the next step is a commit with children and the topic's subscriptions have changed
    since the children got theirs.

    Otherwise the next step of `moves_of` for the operation's state. Raises KeyError for a final state (pass live
    operations only) and, like `moves_of`, for a kind that operations on the topic cannot have.
    """
    may_end = observed.is_refused and can_give_up(operation)
    if may_end or (is_abortable(operation) and _must_abort(operation, observed)):
        return Step.ABORT, OperationState.ABORTING
    if observed.other_live_operations > 0 and WAITS_BEFORE.get(operation.kind) is operation.state:
        return Step.WAIT, operation.state
    if observed.readers > 0 and operation.state is OperationState.INTENDED:
        return Step.WAIT, operation.state
    step, next_state = moves_of(operation)[operation.state]
    is_stale = operation.subscription_version != observed.subscription_version
    if step is Step.COMMIT and operation.children and is_stale:
        return Step.SYNC_SUBSCRIPTIONS, operation.state
    return step, next_state


def why_aborted(observed: Observed) -> str:
    """Return as text why an operation is aborted. Call the function only for an operation that is aborted on request
    or at its deadline, not because the data plane refused a step.

    If an abort was requested, the text is the reason of the request; if the request has no reason, the text says that
    the topic is being deleted. Otherwise the text says that the deadline has passed.
    """
    if observed.abort_requested:
        return observed.abort_reason or "its topic is being deleted"
    return "its deadline passed before its segments were fenced"


def _must_abort(operation: Operation, observed: Observed) -> bool:
    """Return True if an abort was requested or the deadline of the operation is over; the state and the kind of the
    operation may still forbid the abort. A seek has no deadline: it waits for consumers for as long as requested, and
    for its data plane until an abort is requested.
    """
    is_overdue = observed.now_ms >= operation.deadline_at_ms and operation.kind is not OperationKind.SEEK
    return observed.abort_requested or is_overdue
