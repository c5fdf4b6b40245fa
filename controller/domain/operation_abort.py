"""The states in which an operation may be aborted, and the kinds of operation that cannot be aborted on request."""

from __future__ import annotations

from controller.domain.operation import OperationKind, OperationState

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
