"""The steps of operations, and the tables of their order.

The runner (services) performs the steps on the data plane, and records the state that follows under its claim term.
`next_step` chooses the step and has the rules of aborts.

The order of a reshape has these reasons (PIP-468 gives the same). Children exist with every subscription before the
parents are closed, so no message finds the ring uncovered and no cursor starts late. `fencing` is committed before
the first parent is terminated, because a terminated log cannot be opened again: from this state on every holder of
the claim goes forward. The layout changes last, in one transaction, when every parent is known to be closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from controller.domain.operation import Operation, OperationKind, OperationState


class Step(StrEnum):
    """One step of an operation. Every step is idempotent: a repetition changes nothing."""

    CREATE_CHILDREN = "create-children"
    """Create each reserved child log with every subscription at earliest; record the subscription version."""
    SET_FENCING = "set-fencing"
    """Commit that parents may be terminated from this point on."""
    TERMINATE_PARENTS = "terminate-parents"
    """Close all parents for appends before anything is committed."""
    SYNC_SUBSCRIPTIONS = "sync-subscriptions"
    """Apply to the children the changes of subscriptions since the children were created."""
    COMMIT = "commit"
    """Perform the one transaction: parents sealed, children active, epoch + 1."""
    FINISH = "finish"
    """Notify and clean up; the operation is then done."""
    FIND_CURSORS = "find-cursors"
    """Record the logs that have a cursor of the subscription before the operation makes or deletes any."""
    CREATE_CURSORS = "create-cursors"
    """Create the subscription on every segment that it reads, at earliest or after the last message."""
    DELETE_CURSORS = "delete-cursors"
    """Delete the subscription from every segment that may carry it."""
    STOP_READERS = "stop-readers"
    """End the ownership of all buckets of the subscription: the owners have released them, or their time to do so is
    over.
    """
    MOVE_CURSORS = "move-cursors"
    """Move the subscription's cursor on every log, sealed ones included, while no consumer reads."""
    ABORT = "abort"
    """Give up before the fence: queue the reserved children for deletion."""
    FINISH_ABORT = "finish-abort"
    """Finish the abort after the deletion entries are written."""
    TAKE_OVER = "take-over"
    """Turn off the broker's own controller for the topic and record its previous setting; create the topic if requested.
    """
    RESHAPE_ON_BROKER = "reshape-on-broker"
    """Request the reshape from the broker that keeps the layout. The step is done when the broker's layout shows the
    reshape, whichever program requested it.
    """
    DELETE_ON_BROKER = "delete-on-broker"
    """Let the broker delete the topic whose layout the broker keeps, with every log."""
    GIVE_BACK = "give-back"
    """Restore the setting of the broker's own controller."""
    WAIT = "wait"
    """Do nothing yet: another live operation of the topic must end first, or consumers must release their buckets."""


_S, _K = OperationState, OperationKind
_RESHAPE: Mapping[OperationState, tuple[Step, OperationState]] = {
    _S.INTENDED: (Step.CREATE_CHILDREN, _S.PREPARED),
    _S.PREPARED: (Step.SET_FENCING, _S.FENCING),
    _S.FENCING: (Step.TERMINATE_PARENTS, _S.FENCED),
    _S.FENCED: (Step.COMMIT, _S.COMMITTED),
    _S.COMMITTED: (Step.FINISH, _S.DONE),
    _S.ABORTING: (Step.FINISH_ABORT, _S.ABORTED),
}
_COMMIT_ONLY: Mapping[OperationState, tuple[Step, OperationState]] = {
    _S.INTENDED: (Step.COMMIT, _S.COMMITTED),
    _S.COMMITTED: (Step.FINISH, _S.DONE),
}
MOVES: Mapping[OperationKind, Mapping[OperationState, tuple[Step, OperationState]]] = {
    **dict.fromkeys((_K.SPLIT, _K.MERGE, _K.REBUCKET, _K.RECUT, _K.HEAL, _K.ADOPT), _RESHAPE),
    _K.CREATE: {
        _S.INTENDED: (Step.CREATE_CHILDREN, _S.PREPARED),
        _S.PREPARED: (Step.COMMIT, _S.COMMITTED),
        _S.COMMITTED: (Step.FINISH, _S.DONE),
        _S.ABORTING: (Step.FINISH_ABORT, _S.ABORTED),
    },
    _K.PRUNE: _COMMIT_ONLY,
    _K.DELETE: _COMMIT_ONLY,
    _K.SUBSCRIPTION_CREATE: {
        _S.INTENDED: (Step.FIND_CURSORS, _S.PREPARED),
        _S.PREPARED: (Step.CREATE_CURSORS, _S.COMMITTED),
        _S.COMMITTED: (Step.FINISH, _S.DONE),
        _S.ABORTING: (Step.FINISH_ABORT, _S.ABORTED),
    },
    _K.SUBSCRIPTION_DELETE: {
        _S.INTENDED: (Step.FIND_CURSORS, _S.PREPARED),
        _S.PREPARED: (Step.DELETE_CURSORS, _S.FENCED),
        _S.FENCED: (Step.COMMIT, _S.COMMITTED),
        _S.COMMITTED: (Step.FINISH, _S.DONE),
        _S.ABORTING: (Step.FINISH_ABORT, _S.ABORTED),
    },
    _K.SEEK: {
        _S.INTENDED: (Step.STOP_READERS, _S.PREPARED),
        _S.PREPARED: (Step.MOVE_CURSORS, _S.FENCED),
        _S.FENCED: (Step.COMMIT, _S.COMMITTED),
        _S.COMMITTED: (Step.FINISH, _S.DONE),
        _S.ABORTING: (Step.FINISH_ABORT, _S.ABORTED),
    },
}
"""State -> (step to perform, state that follows), for each kind. No other code orders steps."""

_ON_BROKER: Mapping[OperationState, tuple[Step, OperationState]] = {
    _S.INTENDED: (Step.RESHAPE_ON_BROKER, _S.FENCED),
    _S.FENCED: (Step.COMMIT, _S.COMMITTED),
    _S.COMMITTED: (Step.FINISH, _S.DONE),
    _S.ABORTING: (Step.FINISH_ABORT, _S.ABORTED),
}
MIRROR_MOVES: Mapping[OperationKind, Mapping[OperationState, tuple[Step, OperationState]]] = {
    **dict.fromkeys((_K.SPLIT, _K.MERGE, _K.REBUCKET), _ON_BROKER),
    _K.ATTACH: {
        _S.INTENDED: (Step.TAKE_OVER, _S.PREPARED),
        _S.PREPARED: (Step.COMMIT, _S.COMMITTED),
        _S.COMMITTED: (Step.FINISH, _S.DONE),
        _S.ABORTING: (Step.FINISH_ABORT, _S.ABORTED),
    },
    **{
        kind: {
            _S.INTENDED: (step, _S.PREPARED),
            _S.PREPARED: (Step.COMMIT, _S.COMMITTED),
            _S.COMMITTED: (Step.FINISH, _S.DONE),
            _S.ABORTING: (Step.FINISH_ABORT, _S.ABORTED),
        }
        for kind, step in ((_K.DETACH, Step.GIVE_BACK), (_K.DELETE, Step.DELETE_ON_BROKER))
    },
}
"""The table of transitions for topics whose layout a broker keeps (Pulsar 5): the broker creates the epoch, and the
commit mirrors it.

Cleave has no fence to announce for these topics. A reshape that the broker did not perform is given up. If the broker
performed the reshape, the mirror finds it, even after Cleave gave it up. A segment is reshaped only once, so
repeating the request does no harm.
"""


def moves_of(operation: Operation) -> Mapping[OperationState, tuple[Step, OperationState]]:
    """Return the transitions of the operation's kind: for each state the step to perform and the state that follows.
    Raises KeyError for a kind that operations on the topic cannot have, such as a recut of a mirrored topic.
    """
    return (MIRROR_MOVES if operation.is_mirrored else MOVES)[operation.kind]
