"""Performs each step on logs, for any number of operations on one data plane. Every action first reads the
present state and may be repeated.

This module writes nothing to the store; `operation_set` records the results. All calls go through `call_all`,
which keeps the claims valid during the calls. An obstacle of one operation is reported for this operation
only; an error of a call applies to all operations of the call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from controller.dataplane.base import CreatedLog, DataPlane, LogState, SetWiseDataPlane, Successor
from controller.domain.errors import (
    CleaveError,
    Conflict,
    HeldUp,
    InvalidInput,
    NotFound,
    SegmentNotFound,
    SubscriptionNotFound,
    UnmanagedLog,
    Unsupported,
)
from controller.domain.operation import FROM_LATEST, SEEK_TARGET, SUBSCRIPTION, Observed, Operation, Step
from controller.services.operation_runner.calls import CallAll
from controller.services.operation_runner.gate_acts import GateActs
from controller.store.journal import seeks
from controller.store.journal.seeks import SeekLog
from controller.store.postgres.engine import Store
from controller.store.topics import backing_logs, gates, subscriptions
from controller.store.topics.bucket_owners import SubscriptionKey

MOST_CURSORS = 500
"""Maximum number of cursors in one call; a log with more cursors has a call of its own."""
HELD_SECONDS = 0.02
"""Seconds until a log to which a client appends is tried again: it becomes free within milliseconds."""

Detail = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Subject:
    """An operation and the last observation of its topic.

    `carried`: subscriptions known to exist on the children. `positions`: end positions of the parents known
    to be terminated.
    """

    operation: Operation
    observed: Observed
    carried: frozenset[str] = frozenset()
    positions: Mapping[str, str] = field(default_factory=dict)

    @property
    def operation_id(self) -> int:
        """Id of the operation, by which results are returned."""
        return self.operation.operation_id

    def successors(self) -> Iterator[Successor]:
        """Yield the children with every subscription at the earliest message: the recorded ones and those of
        the parents, except those being deleted.

        The rows were read before the logs are read: a subscription whose row was gone by then has no cursor
        on any parent either.
        """
        for child in self.operation.children:
            yield Successor(
                child.backing_topic,
                self.operation.fenced_topics,
                self.observed.live_subscriptions,
                self.observed.ending_subscriptions,
                self.operation.origin_of(child, self.observed.topic_epoch),
            )

    def stranger(self, born: Mapping[str, CreatedLog]) -> str | None:
        """Return a child's log that another operation created; None if there is none.

        A log without an origin passes: a client may have created the log by opening a reserved child early.
        """
        for child in self.operation.children:
            origin = born[child.backing_topic].origin
            if origin is not None and origin.token != self.operation.token:
                return child.backing_topic
        return None


@dataclass(slots=True)
class StepResults:
    """Results of an action by operation id: details for the journal, or the obstacle of the operation.

    `carried`: subscriptions that exist on the children. `positions`: end positions of the terminated parents.
    """

    details: dict[int, Detail] = field(default_factory=dict)
    errors: dict[int, CleaveError] = field(default_factory=dict)
    carried: dict[int, frozenset[str]] = field(default_factory=dict)
    positions: dict[int, Mapping[str, str]] = field(default_factory=dict)


class LogActs:
    """The actions on one data plane."""

    def __init__(self, store: Store, plane: DataPlane, call_all: CallAll) -> None:
        self._store = store
        self._plane = plane
        self._call_all = call_all
        self._gates = GateActs(store, plane, call_all)

    def perform(self, step: Step, subjects: Sequence[Subject]) -> StepResults:
        """Perform the step for all operations."""
        match step:
            case Step.CREATE_CHILDREN | Step.SET_FENCING:
                return self._create_children(subjects, demands_open=True)
            case Step.SYNC_SUBSCRIPTIONS:
                return self._create_children(subjects, demands_open=False)
            case Step.TERMINATE_PARENTS:
                return self._terminate_parents(subjects)
            case Step.FINISH:
                return self._complete_children(subjects)
            case Step.CREATE_CURSORS:
                return StepResults(
                    {one.operation_id: self._create_cursors(one.operation) for one in subjects}
                )
            case Step.DELETE_CURSORS:
                return StepResults(
                    {one.operation_id: self._delete_cursors(one.operation) for one in subjects}
                )
            case Step.STOP_READERS:
                return StepResults({one.operation_id: self._stop_readers(one.operation) for one in subjects})
            case Step.MOVE_CURSORS:
                return StepResults({one.operation_id: self._move_cursors(one.operation) for one in subjects})
            case _:
                return StepResults({one.operation_id: {} for one in subjects})

    def _create_children(self, subjects: Sequence[Subject], *, demands_open: bool) -> StepResults:
        """Create each reserved log with every subscription. The call also returns the state of each log.

        Before the fence, a child that another client terminated ends its operation: the child could never
        accept a write, and aborting has no cost yet.
        """
        made = self._create(successor for one in subjects for successor in one.successors())
        acted = StepResults()
        for one in subjects:
            born = {child.backing_topic: made[child.backing_topic] for child in one.operation.children}
            stranger = one.stranger(born)
            if stranger is not None:
                acted.errors[one.operation_id] = UnmanagedLog(
                    f"{stranger} was created by an operation that this journal does not have; "
                    f"see `cleave topics recover {one.operation.topic_name} --dry-run`"
                )
                continue
            closed = sorted(log for log, found in born.items() if found.state is not LogState.OPEN)
            if demands_open and closed:
                acted.errors[one.operation_id] = Conflict(
                    f"{', '.join(closed)} terminated before taking over; reshape again"
                )
                continue
            self._gates.close_children(one.operation, one.observed.stock_subscriptions)
            carried = frozenset(name for found in born.values() for name in found.subscriptions)
            acted.carried[one.operation_id] = carried
            noted = _noted(carried, one.observed.live_subscriptions)
            acted.details[one.operation_id] = {**noted, **_gated(one)}
        return acted

    def _terminate_parents(self, subjects: Sequence[Subject]) -> StepResults:
        """Terminate the parents, which fences their ranges. If the common call did not terminate a parent,
        its operation is handled alone, after the others. The gates of the children are closed before the first
        parent is terminated.
        """
        for one in subjects:
            self._gates.keep_closed(one.operation, one.observed.stock_subscriptions)
        open_logs = [
            log for one in subjects for log in one.operation.fenced_topics if log not in one.positions
        ]
        closed = self._terminate(open_logs) if open_logs else {}
        positions = {log: at for one in subjects for log, at in one.positions.items()} | closed
        acted = StepResults()
        for one in subjects:
            left = [log for log in one.operation.fenced_topics if log not in positions]
            own = {log: positions[log] for log in one.operation.fenced_topics if log in positions}
            acted.positions[one.operation_id] = own
            if not left:
                acted.details[one.operation_id] = {"positions": own}
            elif len(subjects) > 1:
                acted.errors[one.operation_id] = HeldUp(f"{', '.join(left)} not closed yet", 0.0)
            else:
                acted.details[one.operation_id] = self._put_back(one, own, left)
        return acted

    def _put_back(self, subject: Subject, positions: dict[str, str], left: Sequence[str]) -> Detail:
        """Create a parent that was deleted by hand again, empty, so that it can be terminated: otherwise any
        client could create a log of this name and write to it. Raises HeldUp for a log that another client
        holds.
        """
        for log in left:
            [state] = self._call_all([partial(self._plane.segment_state, log)])
            if state is not LogState.MISSING:  # at the latest it would be found unclosed below
                raise HeldUp(f"somebody holds {log}; trying again", HELD_SECONDS)
            with self._store.single_statement() as tx:
                origin = backing_logs.origins(tx, [log]).get(log)
            self._create([Successor(log, (), subject.observed.live_subscriptions, origin=origin)])
            positions |= self._terminate([log])
        unclosed = [log for log in left if log not in positions]
        if unclosed:
            raise HeldUp(f"{', '.join(unclosed)} gone again; trying again", HELD_SECONDS)
        return {"positions": positions, "found missing": list(left)}

    def _complete_children(self, subjects: Sequence[Subject]) -> StepResults:
        """Create subscriptions that an application made on a parent during its termination on the children
        too. Then check the parents, because a broker may have left a parent fenced.
        """
        acted = StepResults({one.operation_id: {} for one in subjects})
        succeeding = [one for one in subjects if one.operation.kind.succeeds_logs]
        logs = [log for one in succeeding for log in one.operation.fenced_topics]
        if not logs:
            return acted
        [found] = self._call_all([partial(self._set_wise.subscriptions_of, logs)])
        for one in succeeding:
            on_parents = {name for log in one.operation.fenced_topics for name in found.get(log, ())}
            recorded = {*one.observed.live_subscriptions, *one.observed.ending_subscriptions}
            late = sorted(on_parents - one.carried - recorded)
            if late:
                children = [child.backing_topic for child in one.operation.children]
                missing = {log for name in late for log in self._add_cursors(children, name)}
                acted.details[one.operation_id] = {
                    "subscriptions": late,
                    "logs found missing": sorted(missing),
                }
        self._gates.probe_fences(logs)
        return acted

    def _create_cursors(self, operation: Operation) -> Detail:
        """Create the cursors on every log that held data at or after the subscription's first epoch, sealed
        logs included.
        """
        name = str(operation.parameters[SUBSCRIPTION])
        with self._store.single_statement() as tx:
            logs = backing_logs.carrying_subscription(tx, operation.topic_id, name)
            is_stock = subscriptions.get_subscription(tx, operation.topic_id, name).is_stock
        if operation.parameters.get(FROM_LATEST) is True:
            self._call_all([partial(self._begin_behind, log, name) for log in logs])
        ungated = (
            self._gates.create_cursors(operation, SubscriptionKey(operation.topic_id, name), logs)
            if is_stock
            else logs
        )
        missing = self._add_cursors(ungated, name)
        return {"logs": len(logs), "logs found missing": missing}

    def _delete_cursors(self, operation: Operation) -> Detail:
        name = str(operation.parameters["subscription"])
        with self._store.single_statement() as tx:
            logs = backing_logs.backing_topics(tx, operation.topic_id)

        def delete(log: str) -> None:
            with suppress(InvalidInput):  # the plane takes no such name, so there is no such cursor
                self._plane.delete_subscription(log, name)

        self._call_all([partial(delete, log) for log in logs])
        self._gates.remove(operation, name)
        return {"logs": len(logs)}

    def _stop_readers(self, operation: Operation) -> Detail:
        """End the ownership of consumers that have not released their buckets in time.

        Every cursor is read first: while a cursor is unreachable, none must be moved, and the seek can still
        be cancelled.
        """
        name = str(operation.parameters[SUBSCRIPTION])

        def look(one: SeekLog) -> None:
            with suppress(NotFound):  # nothing to move there
                self._plane.backlog(one.backing_topic, name)

        self._call_all([partial(look, one) for one in self._sought_logs(operation)])
        with self._store.transaction() as tx:
            ended = seeks.end_owners(tx, operation)
            gates.demand_no_opening(tx, SubscriptionKey(operation.topic_id, name))
            return {"not let go of": ended}

    def _move_cursors(self, operation: Operation) -> Detail:
        """Move each cursor, then determine the sealed logs that have nothing to read after that. A segment
        that is created in the meantime starts at the right position: all its messages are younger than the
        request. The cursors of a checkpoint group stay, because they keep messages.
        """
        name = str(operation.parameters[SUBSCRIPTION])
        sought = operation.parameters[SEEK_TARGET]
        logs = self._sought_logs(operation)
        if self._is_stock(operation, name):
            return self._move_gated_cursors(operation, name, logs)

        def move(one: SeekLog) -> int | None:
            """Move one cursor. Return the backlog afterwards; None if the log or the cursor does not exist."""
            try:
                if isinstance(sought, int):
                    self._seek(one.backing_topic, name, sought)
                elif sought is None:
                    self._plane.skip_all(one.backing_topic, name)
            except NotFound:
                return None
            return self._plane.backlog(one.backing_topic, name) if one.is_sealed else 0

        left = self._call_all([partial(move, one) for one in logs])
        found = list(zip(logs, left, strict=True))
        return {
            "logs": len(logs),
            "read": [one.segment_id for one, backlog in found if one.is_sealed and backlog == 0],
            "missing": [one.segment_id for one, backlog in found if backlog is None],
        }

    def _move_gated_cursors(self, operation: Operation, name: str, logs: Sequence[SeekLog]) -> Detail:
        """The cursors of standard consumers, with the gates of whatever has ancestors to read closed before the first one moves."""
        key, sought = SubscriptionKey(operation.topic_id, name), operation.parameters[SEEK_TARGET]
        instant_ms = sought if isinstance(sought, int) else None
        if instant_ms is not None:
            self._gates.close_for_seek(operation, key, instant_ms)
        return self._gates.move_cursors(operation, key, logs, instant_ms)

    def _is_stock(self, operation: Operation, name: str) -> bool:
        with self._store.single_statement() as tx:
            return name in gates.stock_subscriptions(tx, operation.topic_id)

    def _begin_behind(self, log: str, name: str) -> None:
        """Create the cursor after the last message. A cursor that an application created stays where it is."""
        if name in self._plane.list_subscriptions(log):
            return
        with suppress(SegmentNotFound):
            self._plane.create_subscription(log, name)
            self._plane.skip_all(log, name)

    def _seek(self, log: str, name: str, instant_ms: int) -> None:
        """Move the cursor. A log that was sealed before the subscription began has no cursor yet. Raises
        NotFound.
        """
        try:
            self._plane.seek(log, name, instant_ms)
        except SubscriptionNotFound:
            self._plane.create_subscription(log, name)
            self._plane.seek(log, name, instant_ms)

    def _sought_logs(self, operation: Operation) -> list[SeekLog]:
        key = SubscriptionKey(operation.topic_id, str(operation.parameters[SUBSCRIPTION]))
        with self._store.single_statement() as tx:
            return seeks.logs_of(tx, key)

    def _add_cursors(self, topics: Sequence[str], name: str) -> list[str]:
        """Create the cursors. Return the logs that do not exist: the reconciler creates these logs again with
        every cursor.
        """

        def is_missing(topic: str) -> bool:
            try:
                self._plane.create_subscription(topic, name)
            except SegmentNotFound:
                return True
            return False

        missing = self._call_all([partial(is_missing, topic) for topic in topics])
        return [topic for topic, gone in zip(topics, missing, strict=True) if gone]

    def _create(self, successors: Iterable[Successor]) -> Mapping[str, CreatedLog]:
        calls = [partial(self._set_wise.create_successors, some) for some in _portions(successors)]
        return {log: born for made in self._call_all(calls) for log, born in made.items()}

    def _terminate(self, logs: Sequence[str]) -> dict[str, str]:
        [positions] = self._call_all([partial(self._set_wise.terminate_segments, logs)])
        return dict(positions)

    @property
    def _set_wise(self) -> SetWiseDataPlane:
        if not isinstance(self._plane, SetWiseDataPlane):
            raise Unsupported(
                f"data plane {self._plane.name!r} makes no logs for Cleave: its broker keeps the layouts"
            )
        return self._plane


def _portions(successors: Iterable[Successor]) -> Iterator[list[Successor]]:
    """Yield portions of successors with at most `MOST_CURSORS` cursors each."""
    portion: list[Successor] = []
    cursors = 0
    for one in successors:
        if portion and cursors + len(one.subscriptions) > MOST_CURSORS:
            yield portion
            portion, cursors = [], 0
        portion.append(one)
        cursors += len(one.subscriptions)
    if portion:
        yield portion


def _gated(subject: Subject) -> Detail:
    """What the journal keeps of the children's gates: the subscriptions for which each child has one."""
    names = subject.observed.stock_subscriptions if subject.operation.kind.succeeds_logs else ()
    return {"gates closed for": list(names)} if names else {}


def _noted(carried: Collection[str], recorded: Collection[str]) -> Detail:
    """Return what the journal stores about the children's subscriptions: all of them, and those without a
    row.
    """
    unrecorded = sorted({*carried} - {*recorded})
    return {"subscriptions": sorted(carried)} | ({"made by applications": unrecorded} if unrecorded else {})
