"""Operations: what an act is while it is under way, and the one table of its moves.

An operation is a row before it is an act. The runner (services) asks `next_step` what to do, performs it
against the data plane, and records the state the step leads to under its claim term. This module decides
the order and nothing else: it calls nobody and reads no clock.

The order of a reshape, and why (PIP-468 argues the same): children exist with every subscription before the parents are
closed, so no message finds the ring uncovered and no cursor starts late; `fencing` is committed before the first parent
is terminated, because that is the point of no return: a terminated log cannot be opened again, so from there on every
holder of the claim goes forward; the layout moves last, in one transaction, when every parent is known to be closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controller.domain.log_origin import LogOrigin
from controller.domain.reshape import ChildPlan, ReshapeKind
from controller.domain.segment import segment_of_log


class OperationKind(StrEnum):
    """What people, cooldowns and metrics call an operation."""

    CREATE = "create"
    SPLIT = "split"
    MERGE = "merge"
    REBUCKET = "rebucket"
    RECUT = "recut"
    HEAL = "heal"
    ADOPT = "adopt"
    PRUNE = "prune"
    DELETE = "delete"
    ATTACH = "attach"
    DETACH = "detach"
    SUBSCRIPTION_CREATE = "subscription_create"
    SUBSCRIPTION_DELETE = "subscription_delete"
    SEEK = "seek"

    @property
    def is_reshape(self) -> bool:
        """Whether parents are sealed and children take over."""
        return self.value in ReshapeKind._value2member_map_

    @property
    def succeeds_logs(self) -> bool:
        """Whether older logs are closed in favour of new ones: a reshape, or a topic adopted from plain ones."""
        return self.is_reshape or self is OperationKind.ADOPT


class OperationState(StrEnum):
    """The last step known to be done. `done` and `aborted` are final; every other state is live."""

    INTENDED = "intended"
    PREPARED = "prepared"
    FENCING = "fencing"
    FENCED = "fenced"
    COMMITTED = "committed"
    DONE = "done"
    ABORTING = "aborting"
    ABORTED = "aborted"

    @property
    def is_live(self) -> bool:
        """Whether somebody still has to act."""
        return self not in (OperationState.DONE, OperationState.ABORTED)


class Origin(StrEnum):
    """Who wanted it."""

    AUTO = "auto"
    MANUAL = "manual"
    API = "api"
    RECONCILER = "reconciler"


class Step(StrEnum):
    """One thing to do. Every step is idempotent: done twice it changes nothing the second time."""

    CREATE_CHILDREN = "create-children"
    """Create each reserved child log with every subscription at earliest; note the subscription version."""
    SET_FENCING = "set-fencing"
    """Commit that parents may be terminated from now on."""
    TERMINATE_PARENTS = "terminate-parents"
    """Close the parents for appends, all of them before anything is committed."""
    SYNC_SUBSCRIPTIONS = "sync-subscriptions"
    """Subscriptions changed since the children were made: apply the difference to the children."""
    COMMIT = "commit"
    """The one transaction: parents sealed, children active, epoch + 1."""
    FINISH = "finish"
    """Notify and clean up; the operation is done."""
    CREATE_CURSORS = "create-cursors"
    """Create the subscription on every segment that it reads, at earliest or behind the last message."""
    DELETE_CURSORS = "delete-cursors"
    """Delete the subscription from every segment that may carry it."""
    STOP_READERS = "stop-readers"
    """Nobody owns a bucket of the subscription any more: they have let go, or their time to do so is over."""
    MOVE_CURSORS = "move-cursors"
    """Move the subscription's cursor on every log, sealed ones included, while nobody reads."""
    ABORT = "abort"
    """Give up before the fence: the reserved children are handed to tombstones."""
    FINISH_ABORT = "finish-abort"
    """The tombstones are written; the operation is aborted."""
    TAKE_OVER = "take-over"
    """Turn the broker's own controller of the topic off, remembering what it was; the topic is made if asked."""
    RESHAPE_ON_BROKER = "reshape-on-broker"
    """Ask the broker that keeps the layout for the reshape; done when its layout shows it, whoever did it."""
    DELETE_ON_BROKER = "delete-on-broker"
    """Have the broker delete the topic whose layout it keeps, with every log."""
    GIVE_BACK = "give-back"
    """Put the broker's own controller back as it was."""
    WAIT = "wait"
    """Nothing to do yet: another live operation of the topic has to end first, or consumers have to let go."""


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
"""State -> (step to do, state it leads to), for each kind. Nothing else in the program orders steps."""

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
"""The same for topics whose layout a broker keeps (Pulsar 5): it makes the epoch, and the commit mirrors it.

Cleave has no fence to announce there. A reshape that the broker never did is given up. One that it did is found by the
mirror, even after Cleave gave it up. A segment is reshaped only once, so asking a second time does no harm.
"""

ABORTABLE = frozenset({OperationState.INTENDED, OperationState.PREPARED})
"""Abort is allowed only while the fence has not been announced."""
ABORTABLE_SEEK = frozenset({OperationState.INTENDED})
"""Of a seek: once its readers are stopped, a cursor may have been moved, whether that is recorded or not."""

PATIENT = frozenset({_K.SUBSCRIPTION_CREATE, _K.SUBSCRIPTION_DELETE, _K.DELETE, _K.DETACH})
"""Kinds that nobody gives up on request, and that no deadline ends while they wait. They are given up where the data plane
refuses the first step for good, or fails at it when their deadline is over.
"""

SUBSCRIPTION = "subscription"
"""The parameter that names the subscription which an operation is about."""
UNDOES = "undoes"
"""The parameter of a deletion that removes what is left of a creation which was given up: its operation."""
FROM_LATEST = "from_latest"
"""The parameter that marks the creation of a subscription which begins behind everything published so far."""
SOUGHT_MS, RELEASE_SECONDS = "sought_ms", "release_seconds"
"""Parameters of a seek: where to (`SeekTarget.sought`), and how long consumers have to let go."""
ADOPTED = "adopted"
"""The parameter that lists the plain topics an adoption takes over, in the order of their partitions."""
MIRRORED = "on_broker"
"""The parameter, under its stored name, that marks an operation on a mirrored topic: a broker keeps its layout."""

WAITS_BEFORE: Mapping[OperationKind, OperationState] = {
    _K.SEEK: _S.INTENDED,
    _K.DELETE: _S.INTENDED,
    _K.DETACH: _S.INTENDED,
    _K.SUBSCRIPTION_DELETE: _S.INTENDED,
}
"""Kinds that let older operations of the topic end first, and the state in which they do: a seek those of its subscription, the
others all.

Seeks of one subscription follow one another, so that the last one asked for says where it goes on. A reshape under way would bring back what is being deleted: logs of a deleted topic, or the cursor of a deleted
subscription on children that were planned before the deletion was known.
"""


@dataclass(frozen=True, slots=True)
class ReservedChild:
    """A child as the intent reserved it: plan and backing topic, never computed a second time."""

    plan: ChildPlan
    backing_topic: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the journal, with its parents and reserved children."""

    operation_id: int
    topic_id: int
    topic_name: str
    data_plane: str
    kind: OperationKind
    state: OperationState
    origin: Origin
    actor: str
    reason: str
    request_key: str
    parent_ids: tuple[int, ...] = ()
    parent_topics: tuple[str, ...] = ()
    children: tuple[ReservedChild, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    subscription_version: int | None = None
    claim_term: int = 0
    attempts: int = 0
    last_error: str | None = None
    """Why the last attempt failed, or why the operation was given up."""
    deadline_at_ms: int = 0
    epoch: int | None = None
    token: str | None = None
    """Stored with each log that the operation creates; None for an operation from before tokens were recorded."""

    @property
    def fenced_topics(self) -> tuple[str, ...]:
        """Logs to be closed: those of the parents, or the topics that are being adopted."""
        adopted = self.parameters.get(ADOPTED)
        return tuple(map(str, adopted)) if isinstance(adopted, list | tuple) else self.parent_topics

    def origin_of(self, child: ReservedChild, topic_epoch: int) -> LogOrigin | None:
        """Return the creation record to store with the child's log; None for an operation without a token."""
        if self.token is None:
            return None
        parents = zip(self.parent_ids, map(segment_of_log, self.parent_topics), strict=True)
        replaced = (i for i, known in parents if known is None or known[0].overlaps(child.plan.hash_range))
        return LogOrigin(self.token, topic_epoch + 1, tuple(replaced), child.plan.bucket_splits)

    @property
    def is_mirrored(self) -> bool:
        """Whether a broker keeps the topic's layout: it reserves the ids and makes the epoch."""
        return self.parameters.get(MIRRORED) is True

    @property
    def moves(self) -> Mapping[OperationState, tuple[Step, OperationState]]:
        """The moves of its kind. Raises KeyError for a kind that cannot be done where the topic lives."""
        return (MIRROR_MOVES if self.is_mirrored else MOVES)[self.kind]


@dataclass(frozen=True, slots=True)
class Observed:
    """What the runner saw just now; a step is chosen on this and the row, never on memory."""

    now_ms: int
    subscription_version: int
    age_ms: int = 0
    """Since its intent."""
    topic_epoch: int = 0
    """Layout epoch of the topic. The operation commits a later one."""
    other_live_operations: int = 0
    """Live operations of the topic that are older (smaller id): an operation waits for these only, so no two ever wait
    for each other.
    """
    readers: int = 0
    """Of a seek: buckets that still have an owner whose time to let go is not over."""
    abort_requested: bool = False
    is_refused: bool = False
    """The data plane has refused the next step for good, or for so long that it counts as such."""
    abort_reason: str = ""
    """Who wants it given up, and why; empty where nobody said so."""
    live_subscriptions: tuple[str, ...] = ()
    """Recorded subscriptions at `subscription_version`."""
    ending_subscriptions: tuple[str, ...] = ()
    """Those that are being deleted. New logs do not get them, even where a parent still has them."""
    stock_subscriptions: tuple[str, ...] = ()
    """Live subscriptions that standard consumers read: new logs have a gate for each of them."""


def next_step(operation: Operation, observed: Observed) -> tuple[Step, OperationState]:
    """The step to take, and the state it leads to when it succeeds.

    Raises KeyError only for a final state: the caller asks for live operations.
    """
    may_end = observed.is_refused and can_give_up(operation)
    if may_end or (is_abortable(operation) and _must_abort(operation, observed)):
        return Step.ABORT, OperationState.ABORTING
    if observed.other_live_operations > 0 and WAITS_BEFORE.get(operation.kind) is operation.state:
        return Step.WAIT, operation.state
    if observed.readers > 0 and operation.state is OperationState.INTENDED:
        return Step.WAIT, operation.state
    step, leads_to = operation.moves[operation.state]
    is_stale = operation.subscription_version != observed.subscription_version
    if step is Step.COMMIT and operation.children and is_stale:
        return Step.SYNC_SUBSCRIPTIONS, operation.state
    return step, leads_to


def is_abortable(operation: Operation) -> bool:
    """Whether giving up is still allowed: it has an abort, and the fence is not announced."""
    return operation.state in abortable_states(operation.kind) and _S.ABORTING in operation.moves


def can_give_up(operation: Operation) -> bool:
    """Return True if the operation ends where the data plane refuses its next step for good.

    Whoever has closed a parent goes forward only. A seek that has moved some cursors ends with everything unread; what a
    broker has done to its layout is found by the mirror.
    """
    if _S.ABORTING not in operation.moves:
        return False
    if operation.kind in PATIENT:
        return operation.state is _S.INTENDED
    if operation.kind is _K.SEEK:
        return operation.state in ABORTABLE
    is_done_on_broker = operation.is_mirrored and operation.kind.is_reshape and operation.state is _S.FENCED
    return is_done_on_broker or is_abortable(operation)


def abortable_states(kind: OperationKind) -> frozenset[OperationState]:
    """The states in which a request or the deadline ends it."""
    if kind in PATIENT:
        return frozenset()
    return ABORTABLE_SEEK if kind is OperationKind.SEEK else ABORTABLE


def why_aborted(observed: Observed) -> str:
    """Why an operation that the data plane has not refused is given up."""
    if observed.abort_requested:
        return observed.abort_reason or "its topic is being deleted"
    return "its deadline passed before its segments were fenced"


def _must_abort(operation: Operation, observed: Observed) -> bool:
    """A seek has no deadline: it waits for consumers as long as it was told to, and for its data plane until somebody gives up."""
    is_late = observed.now_ms >= operation.deadline_at_ms and operation.kind is not OperationKind.SEEK
    return observed.abort_requested or is_late
