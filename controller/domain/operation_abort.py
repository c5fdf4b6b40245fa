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
    """Return the states in which a request may end an operation of this kind, and so may the deadline (a seek has
    none); empty for the kinds of `NOT_ABORTABLE`. Whether the kind has an abort at all is not considered:
    `is_abortable` checks that as well.
    """
    if kind in NOT_ABORTABLE:
        return frozenset()
    return ABORTABLE_SEEK if kind is OperationKind.SEEK else ABORTABLE


def is_abortable(operation: Operation) -> bool:
    """Return True if a request or the deadline (a seek has none) may still abort the operation: its kind can be aborted
    on request, the fence has not been announced, and the readers of a seek have not been stopped.
    """
    return operation.state in abortable_states(operation.kind) and OperationState.ABORTING in moves_of(
        operation
    )


def can_give_up(operation: Operation) -> bool:
    """Return True if the operation ends when the data plane refuses its next step permanently.

    Return False for a kind that has no abort, and after the fence is announced or the operation is committed. A seek
    may end like this even if it has moved some cursors; the kinds of `NOT_ABORTABLE` may before their first step is
    done. A reshape of a mirrored topic may until it is committed, because the mirror finds the changes that a broker
    has made to its layout.
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
