"""Chooses the next step of an operation, from its row and the state that the runner has observed; and the rules for
ending an operation early: the states in which it may be aborted or given up, and the kinds that cannot be aborted on
request.

This module decides the order only: it calls no other component and reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.domain.operation import UNDOES, Operation, OperationKind, OperationState
from controller.domain.operation_steps import Step, moves_of

ABORTABLE = frozenset({OperationState.INTENDED, OperationState.PREPARED})
"""States in which an abort is allowed: the fence has not been announced."""
ABORTABLE_SEEK = frozenset({OperationState.INTENDED})
"""States in which a seek may be aborted. After its readers are stopped, a cursor may have been moved, whether or not
this is recorded.
"""

NOT_ABORTABLE = frozenset(
    {
        OperationKind.SUBSCRIPTION_CREATE,
        OperationKind.SUBSCRIPTION_DELETE,
        OperationKind.DELETE,
        OperationKind.DETACH,
    }
)
"""Kinds that cannot be aborted on request, and that no deadline ends while they wait. They are given up if the data
plane refuses a step permanently, or is unavailable for the step after their deadline. This holds for the first step,
and for some operations on subscriptions also in the state PREPARED (`can_give_up`). The deletion of a topic that is
not mirrored has no abort at all.
"""


def abortable_states(kind: OperationKind) -> frozenset[OperationState]:
    """Return the states in which a request may abort an operation of this kind. In the same states the deadline
    aborts an operation, except a seek, which has no deadline. The result is empty for the kinds of `NOT_ABORTABLE`.

    The function does not consider whether operations of the kind have an abort step at all. `is_abortable` considers
    both.
    """
    if kind in NOT_ABORTABLE:
        return frozenset()
    return ABORTABLE_SEEK if kind is OperationKind.SEEK else ABORTABLE


def is_abortable(operation: Operation) -> bool:
    """Return True if a request may still abort the operation, or the deadline may, except for a seek, which has no
    deadline. Three conditions must be met: the kind is not in `NOT_ABORTABLE`, operations of the kind have an abort
    step, and the state is early enough. For a seek this means that the readers have not been stopped; for other
    kinds, that the fence has not been announced.

    Raises KeyError, like `moves_of`, for a kind that operations on the topic cannot have.
    """
    return operation.state in abortable_states(operation.kind) and OperationState.ABORTING in moves_of(
        operation
    )


def can_give_up(operation: Operation, observed: Observed | None) -> bool:
    """Return True if the operation is aborted when the data plane refuses its next step permanently. The last state
    in which this is allowed depends on the kind:

    A kind of `NOT_ABORTABLE` can be given up before its first step is done. A seek, and the creation of a subscription,
    can be given up in the states INTENDED and PREPARED, even if the operation has moved or created some cursors. The same
    holds for the deletion of a subscription that undoes a creation, or whose topic is being deleted or detached
    (`observed`; None: unknown). Any other deletion of a subscription may have deleted cursors in the state PREPARED:
    given up, it would leave a live subscription that misses messages. Every other operation can be given up as long as
    `is_abortable` is True. A reshape of a mirrored topic can also be given up in the state FENCED, before the commit,
    because the mirror finds the changes that a broker has made to the layout.

    The result is False for an operation that has no abort step. Raises KeyError, like `moves_of`, for a kind that
    operations on the topic cannot have.
    """
    if OperationState.ABORTING not in moves_of(operation):
        return False
    is_topic_ending = observed is not None and observed.abort_requested
    needs_no_cursor = operation.kind is OperationKind.SUBSCRIPTION_DELETE and (
        UNDOES in operation.parameters or is_topic_ending
    )
    if needs_no_cursor or operation.kind in (OperationKind.SEEK, OperationKind.SUBSCRIPTION_CREATE):
        return operation.state in ABORTABLE
    if operation.kind in NOT_ABORTABLE:
        return operation.state is OperationState.INTENDED
    is_done_on_broker = (
        operation.is_mirrored and operation.kind.is_reshape and operation.state is OperationState.FENCED
    )
    return is_done_on_broker or is_abortable(operation)


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
    may_end = observed.is_refused and can_give_up(operation, observed)
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
