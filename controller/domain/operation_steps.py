"""The steps of operations: the tables of their order, and the rules when an operation waits, is aborted or is given up.

The runner (services) gets the next step from `next_step`, performs the step on the data plane, and records the state
that follows under its claim term. This module decides the order only: it calls no other component and reads no clock.

The order of a reshape has these reasons (PIP-468 gives the same). Children exist with every subscription before the
parents are closed, so no message finds the ring uncovered and no cursor starts late. `fencing` is committed before
the first parent is terminated, because a terminated log cannot be opened again: from this state on every holder of
the claim goes forward. The layout changes last, in one transaction, when every parent is known to be closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from controller.domain.operation import Operation, OperationKind, OperationState
from controller.domain.operation_abort import ABORTABLE, NOT_ABORTABLE, abortable_states


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
        _S.INTENDED: (Step.CREATE_CURSORS, _S.COMMITTED),
        _S.COMMITTED: (Step.FINISH, _S.DONE),
        _S.ABORTING: (Step.FINISH_ABORT, _S.ABORTED),
    },
    _K.SUBSCRIPTION_DELETE: {
        _S.INTENDED: (Step.DELETE_CURSORS, _S.PREPARED),
        _S.PREPARED: (Step.COMMIT, _S.COMMITTED),
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

WAITS_BEFORE: Mapping[OperationKind, OperationState] = {
    _K.SEEK: _S.INTENDED,
    _K.DELETE: _S.INTENDED,
    _K.DETACH: _S.INTENDED,
    _K.SUBSCRIPTION_DELETE: _S.INTENDED,
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


def moves_of(operation: Operation) -> Mapping[OperationState, tuple[Step, OperationState]]:
    """Return the transitions of the operation's kind: for each state the step to perform and the state that follows.
    Raises KeyError for a kind that operations on the topic cannot have, such as a recut of a mirrored topic.
    """
    return (MIRROR_MOVES if operation.is_mirrored else MOVES)[operation.kind]


def next_step(operation: Operation, observed: Observed) -> tuple[Step, OperationState]:
    """Return the step to perform, and the state to record when the step has succeeded. Step.WAIT and
    Step.SYNC_SUBSCRIPTIONS keep the state.

    An abort comes first: the data plane refuses the next step permanently (if `can_give_up`), or an abort is requested
    or the deadline is over (if `is_abortable`; a seek has no deadline). Then the kinds of `WAITS_BEFORE` wait, in the
    state given there, for older operations, and an operation in the state INTENDED waits for readers. A commit with
    children is preceded by Step.SYNC_SUBSCRIPTIONS unless the children have the topic's present subscriptions. Raises
    KeyError for a final state (pass live operations only) and, like `moves_of`, for a kind that operations on the topic
    cannot have.
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


def is_abortable(operation: Operation) -> bool:
    """Return True if a request or the deadline (a seek has none) may still abort the operation: its kind can be aborted
    on request, the fence has not been announced, and the readers of a seek have not been stopped.
    """
    return operation.state in abortable_states(operation.kind) and _S.ABORTING in moves_of(operation)


def can_give_up(operation: Operation) -> bool:
    """Return True if the operation ends when the data plane refuses its next step permanently.

    Return False for a kind that has no abort, and after the fence is announced or the operation is committed. A seek
    may end like this even if it has moved some cursors; the kinds of `NOT_ABORTABLE` may before their first step is
    done. A reshape of a mirrored topic may until it is committed, because the mirror finds the changes that a broker
    has made to its layout.
    """
    if _S.ABORTING not in moves_of(operation):
        return False
    if operation.kind in NOT_ABORTABLE:
        return operation.state is _S.INTENDED
    if operation.kind is _K.SEEK:
        return operation.state in ABORTABLE
    is_done_on_broker = operation.is_mirrored and operation.kind.is_reshape and operation.state is _S.FENCED
    return is_done_on_broker or is_abortable(operation)


def why_aborted(observed: Observed) -> str:
    """Return as text why an operation is aborted that the data plane has not refused. If an abort was requested, the
    reason is that of the request, or the deletion of the topic if the request has none; otherwise the deadline has
    passed.
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
