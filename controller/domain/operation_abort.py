"""Rules for ending an operation early: the states in which it may be aborted or given up, and the kinds that cannot be aborted on request."""

from __future__ import annotations

from controller.domain.operation import Operation, OperationKind, OperationState
from controller.domain.operation_steps import moves_of

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
plane refuses the first step permanently, or if the data plane is unavailable for the step after their deadline. The
deletion of a topic that is not mirrored has no abort at all.
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


def can_give_up(operation: Operation) -> bool:
    """Return True if the operation is aborted when the data plane refuses its next step permanently. The last state
    in which this is allowed depends on the kind:

    A kind of `NOT_ABORTABLE` can be given up before its first step is done. A seek can be given up in the states
    INTENDED and PREPARED, even if the seek has moved some cursors. Every other operation can be given up as long as
    `is_abortable` is True. A reshape of a mirrored topic can also be given up in the state FENCED, before the commit,
    because the mirror finds the changes that a broker has made to the layout.

    The result is False for an operation that has no abort step. Raises KeyError, like `moves_of`, for a kind that
    operations on the topic cannot have.
    """
    if OperationState.ABORTING not in moves_of(operation):
        return False
    if operation.kind in NOT_ABORTABLE:
        return operation.state is OperationState.INTENDED
    if operation.kind is OperationKind.SEEK:
        return operation.state in ABORTABLE
    is_done_on_broker = (
        operation.is_mirrored and operation.kind.is_reshape and operation.state is OperationState.FENCED
    )
    return is_done_on_broker or is_abortable(operation)
