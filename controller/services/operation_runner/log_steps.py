"""Performs each step on logs, for any number of operations on one data plane. Every action first reads the
present state and may be repeated.

This module writes only this to the store: before a seek the ends of ownerships and the epoch after which the
subscription reads, and the gates (`gate_steps`); `operation_set` records the results. All calls go through
`call_all`, which keeps the claims valid during the calls. An obstacle of one operation is reported for this operation
only; an error of a call applies to all operations of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
    UnmanagedLog,
    Unsupported,
)
from controller.domain.next_step import Observed
from controller.domain.operation import CONSUMERS, FROM_LATEST, SEEK_TARGET, SUBSCRIPTION, Operation
from controller.domain.operation_steps import Step
from controller.services.operation_runner.call_all import CallAll
from controller.services.operation_runner.gate_steps import GateSteps, seek
from controller.store.journal import seeks, subscription_intents
from controller.store.journal.seeks import SeekLog
from controller.store.postgres.engine import Store
from controller.store.topics import backing_logs, gates, subscriptions
from controller.store.topics.bucket_owners import SubscriptionKey

MOST_CURSORS = 500
"""Maximum number of cursors in one call; a log with more cursors has a call of its own."""
HELD_LOG_RETRY_SECONDS = 0.02
"""Seconds until a log to which a client appends is tried again: it becomes free within milliseconds."""

Detail = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ObservedOperation:
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
        """Yield the children with every subscription at the earliest message: the recorded subscriptions and the
        subscriptions of the parents, except subscriptions that are being deleted.

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

    def unmanaged_log(self, child_logs: Mapping[str, CreatedLog]) -> str | None:
        """Return the name of the first child's log whose recorded origin is not this operation: another operation,
        perhaps of another journal, created the log. None if there is no such log. `child_logs` has the logs as the
        data plane reports them, by name, and must have the log of each child.

        A log without an origin passes: a client may have created the log by opening a reserved child early.
        """
        for child in self.operation.children:
            origin = child_logs[child.backing_topic].origin
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


class LogSteps:
    """Performs the steps of operations on the logs of one data plane, under the operation claims that
    `call_all` renews.
    """

    def __init__(self, store: Store, plane: DataPlane, call_all: CallAll) -> None:
        self._store = store
        self._plane = plane
        self._call_all = call_all
        self._gates = GateSteps(store, plane, call_all)
        self._acts_of_one: Mapping[Step, Callable[[Operation], Detail]] = {
            Step.FIND_CURSORS: self._find_cursors,
            Step.CREATE_CURSORS: self._create_cursors,
            Step.DELETE_CURSORS: self._delete_cursors,
            Step.STOP_READERS: self._stop_readers,
            Step.MOVE_CURSORS: self._move_cursors,
            Step.FINISH_ABORT: self._finish_abort,
        }
        """Actions that are performed for one operation after the other."""

    def perform(self, step: Step, subjects: Sequence[ObservedOperation]) -> StepResults:
        """Perform the step for all operations, and return the results. An obstacle of a single operation
        (UnmanagedLog, Conflict, or HeldUp while its parents cannot be terminated) is not raised, but returned in the
        results' `errors`. A step that needs no action on logs returns empty details.

        Raises the first error of a call, such as DataPlaneUnavailable, which then concerns all operations; some calls
        may have taken effect, and the step may be repeated. Also raises HeldUp if a claim is lost or if the
        termination of a single operation must be repeated, SubscriptionNotFound if a subscription to be created has
        no row, Unsupported if the data plane lacks a necessary function (logs that Cleave creates, or gates), and the
        errors of the store.
        """
        match step:
            case Step.CREATE_CHILDREN | Step.SET_FENCING:
                return self._create_children(subjects, demands_open=True)
            case Step.SYNC_SUBSCRIPTIONS:
                return self._create_children(subjects, demands_open=False)
            case Step.TERMINATE_PARENTS:
                return self._terminate_parents(subjects)
            case Step.FINISH:
                return self._complete_children(subjects)
            case _:
                act = self._acts_of_one.get(step)
                return StepResults(
                    {subject.operation_id: act(subject.operation) if act else {} for subject in subjects}
                )

    def _create_children(self, subjects: Sequence[ObservedOperation], *, demands_open: bool) -> StepResults:
        """Create the log of each child with every subscription at the earliest message, then close the children's
        gates. An existing log keeps its cursors and gets the missing subscriptions. The details have `subscriptions`
        (all subscriptions that exist on any child), `made by applications` (those subscriptions that have no live
        row; absent if there are none) and `gates closed for` (the subscriptions with gates; absent if there are
        none). `carried` of the results has the subscriptions as well.

        If another operation created a child's log, the results' `errors` have UnmanagedLog for the operation. With
        `demands_open`, which the steps before the fence use, the errors have Conflict if a child's log does not
        accept appends: the child could never accept a write, and an abort has no cost yet. The gates of an operation
        with an error are not closed.

        Raises Unsupported if Cleave creates no logs on the data plane or the data plane lacks gates that are
        necessary, the errors of the calls, and the errors of the store.
        """
        created_logs = self._create(successor for subject in subjects for successor in subject.successors())
        results = StepResults()
        for subject in subjects:
            child_logs = {
                child.backing_topic: created_logs[child.backing_topic] for child in subject.operation.children
            }
            unmanaged_log = subject.unmanaged_log(child_logs)
            if unmanaged_log is not None:
                results.errors[subject.operation_id] = UnmanagedLog(
                    f"{unmanaged_log} was created by an operation that this journal does not have; "
                    f"see `cleave topics recover {subject.operation.topic_name} --dry-run`"
                )
                continue
            closed = sorted(
                log for log, created_log in child_logs.items() if created_log.state is not LogState.OPEN
            )
            if demands_open and closed:
                results.errors[subject.operation_id] = Conflict(
                    f"{', '.join(closed)} terminated before taking over; reshape again"
                )
                continue
            self._gates.close_children(subject.operation, subject.observed.stock_subscriptions)
            carried = frozenset(
                name for created_log in child_logs.values() for name in created_log.subscriptions
            )
            results.carried[subject.operation_id] = carried
            subscriptions_detail = _subscriptions_detail(carried, subject.observed.live_subscriptions)
            results.details[subject.operation_id] = {**subscriptions_detail, **_gates_detail(subject)}
        return results

    def _terminate_parents(self, subjects: Sequence[ObservedOperation]) -> StepResults:
        """Verify that the gates of the children are closed, then terminate the logs that the operations fence, which
        stops writes to their ranges. The details have the end position of each of these logs, by log, as `positions`.
        A log that was terminated under this claim is not terminated again.

        If the data plane did not terminate a log, because the log is missing or another client holds it, the results
        depend on the number of operations. With several operations, the operation of the log gets HeldUp in `errors`,
        and its known positions are kept in `positions`, so that the operation is tried alone later. An operation that
        is alone creates a missing log again, empty, and terminates it; HeldUp is raised if another client holds the
        log. Also raises Unsupported if Cleave creates no logs on the data plane, and the errors of the calls and the
        store.
        """
        for subject in subjects:
            self._gates.keep_closed(subject.operation, subject.observed.stock_subscriptions)
        open_logs = [
            log
            for subject in subjects
            for log in subject.operation.fenced_topics
            if log not in subject.positions
        ]
        new_positions = self._terminate(open_logs) if open_logs else {}
        positions = {
            log: position for subject in subjects for log, position in subject.positions.items()
        } | new_positions
        results = StepResults()
        for subject in subjects:
            unterminated = [log for log in subject.operation.fenced_topics if log not in positions]
            own_positions = {
                log: positions[log] for log in subject.operation.fenced_topics if log in positions
            }
            results.positions[subject.operation_id] = own_positions
            if not unterminated:
                results.details[subject.operation_id] = {"positions": own_positions}
            elif len(subjects) > 1:
                results.errors[subject.operation_id] = HeldUp(
                    f"{', '.join(unterminated)} not closed yet", 0.0
                )
            else:
                results.details[subject.operation_id] = self._recreate_and_terminate(
                    subject, own_positions, unterminated
                )
        return results

    def _recreate_and_terminate(
        self, subject: ObservedOperation, positions: dict[str, str], unterminated: Sequence[str]
    ) -> Detail:
        """Create each log in `unterminated` again, empty and with every live subscription, and terminate it. The logs
        were deleted by hand; otherwise any client could create a log of this name and write to it. Return the end
        positions of all logs as `positions`, and `unterminated` as `found missing`. `positions` has the known end
        positions by log; the positions of the logs that were created again are added to this argument.

        Raises HeldUp for the first log that exists (another client holds it), and for logs that are missing or held
        after their creation. Logs before it in `unterminated` stay created and terminated. Also raises the errors of
        the calls and the store.
        """
        for log in unterminated:
            [state] = self._call_all([partial(self._plane.segment_state, log)])
            if state is not LogState.MISSING:
                raise HeldUp(f"another client holds {log}; trying again", HELD_LOG_RETRY_SECONDS)
            with self._store.single_statement() as tx:
                origin = backing_logs.origins(tx, [log]).get(log)
            self._create([Successor(log, (), subject.observed.live_subscriptions, origin=origin)])
            positions |= self._terminate([log])
        still_open = [log for log in unterminated if log not in positions]
        if still_open:
            raise HeldUp(f"{', '.join(still_open)} gone again; trying again", HELD_LOG_RETRY_SECONDS)
        return {"positions": positions, "found missing": list(unterminated)}

    def _complete_children(self, subjects: Sequence[ObservedOperation]) -> StepResults:
        """Copy late subscriptions to the children, then probe the fences of the parents' logs. A late subscription
        exists on a parent, has no row, and is not known to exist on the children: an application may have created it
        during the termination. Its cursors are created on each child at the earliest message. The details have the
        late subscriptions as `subscriptions`, and the children's logs that do not exist as `logs found missing`. The
        details are empty without late subscriptions, and for operations that replace no logs.

        The probe is made on a data plane with gates, because a broker may have left a parent fenced or reopened it.
        Raises HeldUp if a parent was not terminated properly, so that the step is repeated. Also raises Unsupported
        if Cleave creates no logs on the data plane, and the errors of the calls.
        """
        results = StepResults({subject.operation_id: {} for subject in subjects})
        succeeding = [subject for subject in subjects if subject.operation.kind.succeeds_logs]
        logs = [log for subject in succeeding for log in subject.operation.fenced_topics]
        if not logs:
            return results
        [subscriptions_of] = self._call_all([partial(self._set_wise.subscriptions_of, logs)])
        for subject in succeeding:
            on_parents = {
                name for log in subject.operation.fenced_topics for name in subscriptions_of.get(log, ())
            }
            recorded = {*subject.observed.live_subscriptions, *subject.observed.ending_subscriptions}
            late_names = sorted(on_parents - subject.carried - recorded)
            if late_names:
                children = [child.backing_topic for child in subject.operation.children]
                missing = {log for name in late_names for log in self._add_cursors(children, name)}
                results.details[subject.operation_id] = {
                    "subscriptions": late_names,
                    "logs found missing": sorted(missing),
                }
        self._gates.probe_fences(logs)
        return results

    def _find_cursors(self, operation: Operation) -> Detail:
        """Return the number of logs of the topic's segments that are not pruned as `logs`, and as `found on` those of
        them that had a cursor of the subscription before the operation. Makes no change. The result is recorded
        before the operation's first change, so that the undo of a creation keeps the cursors of an application.

        A missing log counts as a log without cursors. So does the log of a segment that a reshape has created since
        the intent, because the reshape gave it the cursor of the subscription. An application's cursor is found on a
        parent instead, so the log counts if a parent is pruned. Raises the errors of the calls and the store.
        """
        name = str(operation.parameters[SUBSCRIPTION])
        with self._store.transaction() as tx:
            logs = backing_logs.backing_topics(tx, operation.topic_id)
            made_since = backing_logs.made_since_intent(tx, operation.operation_id)
        names = self._call_all([partial(self._plane.list_subscriptions, log) for log in logs])
        found = [
            log
            for log, existing in zip(logs, names, strict=True)
            if name in existing and made_since.get(log, True)
        ]
        return {"logs": len(logs), "found on": found}

    def _create_cursors(self, operation: Operation) -> Detail:
        """Create the subscription's cursors on every log of the topic that must have one: logs of segments that are
        not pruned and were active after the subscription's creation epoch, sealed segments included. Return the
        number of these logs as `logs`, and the logs that do not exist as `logs found missing`; the reconciler creates
        missing logs again with every cursor.

        The cursors begin at the earliest message, or after the last message if the operation's parameter
        `FROM_LATEST` is True. Cursors that existed before the operation stay where they are, and so do those of
        segments that were created since the intent. Cursors of standard consumers are created together with their
        gates, which are recorded and closed. Raises SubscriptionNotFound, Unsupported if a gate is necessary on a
        data plane without gates, and the errors of the calls and the store.
        """
        name = str(operation.parameters[SUBSCRIPTION])
        with self._store.transaction() as tx:
            logs = backing_logs.carrying_subscription(tx, operation.topic_id, name)
            is_stock = subscriptions.get_subscription(tx, operation.topic_id, name).is_stock
            found = subscription_intents.cursors_found(tx, operation) or ()
            kept = {*found, *backing_logs.made_since_intent(tx, operation.operation_id)}
        if operation.parameters.get(FROM_LATEST) is True:
            self._call_all([partial(self._create_after_last, log, name) for log in logs if log not in kept])
        key = SubscriptionKey(operation.topic_id, name)
        ungated, missing = self._gates.create_cursors(operation, key, logs) if is_stock else (logs, [])
        return {"logs": len(logs), "logs found missing": [*missing, *self._add_cursors(ungated, name)]}

    def _finish_abort(self, operation: Operation) -> Detail:
        """Open at the data plane the gates of a subscription whose creation is aborted and whose cursors are kept: an
        application reads them, and a dispatch rate would hold its messages back for ever. No effect for any other
        operation. Raises the errors of `GateSteps.remove`, and the errors of the store.
        """
        if CONSUMERS not in operation.parameters:
            return {}
        with self._store.single_statement() as tx:
            found = subscription_intents.cursors_found(tx, operation)
        if found != []:  # otherwise the deletion of the cursors opens the gates
            self._gates.remove(operation, str(operation.parameters[SUBSCRIPTION]))
        return {}

    def _delete_cursors(self, operation: Operation) -> Detail:
        """Delete the subscription's cursors from every log of the topic's segments that are not pruned, even if
        consumers are connected, and open the recorded gates of the subscription at the data plane, so that no
        dispatch rate remains. The rows of the subscription and of its gates stay. Return the number of the logs, with
        or without a cursor, as `logs`.

        A missing log or cursor, and a name that the data plane refuses (InvalidInput), are no errors. Raises the
        other errors of the calls, and the errors of the store.
        """
        name = str(operation.parameters["subscription"])
        with self._store.single_statement() as tx:
            logs = backing_logs.backing_topics(tx, operation.topic_id)

        def delete(log: str) -> None:
            with suppress(InvalidInput):  # The data plane refuses the name, so there is no such cursor.
                self._plane.delete_subscription(log, name)

        self._call_all([partial(delete, log) for log in logs])
        self._gates.remove(operation, name)
        return {"logs": len(logs)}

    def _stop_readers(self, operation: Operation) -> Detail:
        """Begin a seek: end the ownership of all buckets of the subscription that their owners have not released in
        time. Return the number of these ownerships as `not let go of`; the number is 0, and nothing changes, if the
        subscription is being deleted or does not exist. Until the step is recorded, the seek can be cancelled; the
        leader then assigns the buckets again.

        Before that, every cursor of the subscription is read, and the errors of the data plane, such as
        DataPlaneUnavailable, are raised, because no cursor may move while another cursor is unreachable. A missing
        log or cursor is no error. Raises HeldUp, and ends no ownership, if a call that opens a gate of the
        subscription may be in progress. Also raises HeldUp if a claim is lost, TopicNotFound, and the errors of the
        store.
        """
        name = str(operation.parameters[SUBSCRIPTION])

        def read_cursor(seek_log: SeekLog) -> None:
            with suppress(NotFound):  # A log or cursor that does not exist has nothing to move.
                self._plane.backlog(seek_log.backing_topic, name)

        self._call_all([partial(read_cursor, seek_log) for seek_log in self._seek_logs(operation)])
        with self._store.transaction() as tx:
            ended_owners = seeks.end_owners(tx, operation)
            gates.demand_no_opening(tx, SubscriptionKey(operation.topic_id, name))
            return {"not let go of": ended_owners}

    def _move_cursors(self, operation: Operation) -> Detail:
        """Move each cursor of the subscription to the target of the seek. An int is an instant in milliseconds since
        the Unix epoch, and None is the end of each log. With any other target, which is a target of a checkpoint
        group that stores its positions itself, no cursor moves. Before a move to an instant, a committed transaction
        makes the subscription read all segments that may have messages since the instant.

        Return the number of logs as `logs`, the ids of the sealed segments without a message left to read as `read`,
        and the ids of the segments without a log or cursor as `missing`. For an instant, a missing cursor is created.
        A segment that is created in the meantime needs no move: all its messages are younger than the request.

        The cursors of standard consumers are moved by `_move_gated_cursors`, where an ancestor that has messages left
        keeps its descendants' cursors at their barriers. Raises the errors of the calls except NotFound, Unsupported
        if standard consumers read the subscription on a data plane without gates, HeldUp if a claim is lost,
        TopicNotFound, and the errors of the store. After an error, some cursors may have moved; the step may be
        repeated.
        """
        name = str(operation.parameters[SUBSCRIPTION])
        target = operation.parameters[SEEK_TARGET]
        with self._store.transaction() as tx:
            seeks.reach_back(tx, operation)
        logs = self._seek_logs(operation)
        if self._is_stock(operation, name):
            return self._move_gated_cursors(operation, name, logs)

        def move(seek_log: SeekLog) -> int | None:
            """Move one cursor. Return the backlog afterwards, for an ACTIVE segment 0; None if the log or the
            cursor does not exist.
            """
            try:
                if isinstance(target, int):
                    seek(self._plane, seek_log.backing_topic, name, target)
                elif target is None:
                    self._plane.skip_all(seek_log.backing_topic, name)
            except NotFound:
                return None
            return self._plane.backlog(seek_log.backing_topic, name) if seek_log.is_sealed else 0

        backlogs = self._call_all([partial(move, seek_log) for seek_log in logs])
        backlog_of_logs = list(zip(logs, backlogs, strict=True))
        return {
            "logs": len(logs),
            "read": [
                seek_log.segment_id
                for seek_log, backlog in backlog_of_logs
                if seek_log.is_sealed and backlog == 0
            ],
            "missing": [seek_log.segment_id for seek_log, backlog in backlog_of_logs if backlog is None],
        }

    def _move_gated_cursors(self, operation: Operation, name: str, logs: Sequence[SeekLog]) -> Detail:
        """Move the cursors of a subscription of standard consumers to the target of the seek. An int is an instant in
        milliseconds since the Unix epoch; any other target counts as the end of each log. Before a move to an
        instant, the gates of every segment that has a sealed ancestor to read are recorded and closed. Return the
        keys of `GateSteps.move_cursors`: `logs`, `read` and `missing`. Raises the errors of
        `GateSteps.close_for_seek` and `GateSteps.move_cursors`.
        """
        key, target = SubscriptionKey(operation.topic_id, name), operation.parameters[SEEK_TARGET]
        instant_ms = target if isinstance(target, int) else None
        if instant_ms is not None:
            self._gates.close_for_seek(operation, key, instant_ms)
        return self._gates.move_cursors(operation, key, logs, instant_ms)

    def _is_stock(self, operation: Operation, name: str) -> bool:
        with self._store.single_statement() as tx:
            return name in gates.stock_subscriptions(tx, operation.topic_id)

    def _create_after_last(self, log: str, name: str) -> None:
        """Create the cursor of the subscription `name` and move the cursor behind the last message. A cursor that
        exists is moved too, because an earlier attempt may have ended between the two calls. A missing log is
        skipped. Raises the other errors of the data plane, such as DataPlaneUnavailable.
        """
        with suppress(SegmentNotFound):
            self._plane.create_subscription(log, name)
            self._plane.skip_all(log, name)

    def _seek_logs(self, operation: Operation) -> list[SeekLog]:
        """Return the logs on which the seek moves the subscription's cursors."""
        key = SubscriptionKey(operation.topic_id, str(operation.parameters[SUBSCRIPTION]))
        with self._store.single_statement() as tx:
            return seeks.logs_of(tx, key)

    def _add_cursors(self, topics: Sequence[str], name: str) -> list[str]:
        """Create the cursors of the subscription `name` at the earliest message of the logs `topics`; existing
        cursors do not move. Return the logs that do not exist, in the order of `topics`: the reconciler creates these
        logs again with every cursor. Raises the errors of the calls except SegmentNotFound, and HeldUp if a claim is
        lost.
        """

        def is_missing(topic: str) -> bool:
            try:
                self._plane.create_subscription(topic, name)
            except SegmentNotFound:
                return True
            return False

        missing = self._call_all([partial(is_missing, topic) for topic in topics])
        return [topic for topic, is_gone in zip(topics, missing, strict=True) if is_gone]

    def _create(self, successors: Iterable[Successor]) -> Mapping[str, CreatedLog]:
        """Create the logs, in portions of at most `MOST_CURSORS` cursors. Return each log by name."""
        calls = [partial(self._set_wise.create_successors, portion) for portion in _portions(successors)]
        return {
            log: created_log
            for created_logs in self._call_all(calls)
            for log, created_log in created_logs.items()
        }

    def _terminate(self, logs: Sequence[str]) -> dict[str, str]:
        """Terminate the logs in one call. Return the end position of each log that is terminated now. A log that is
        missing, or that another client holds, is absent.
        """
        [positions] = self._call_all([partial(self._set_wise.terminate_segments, logs)])
        return dict(positions)

    @property
    def _set_wise(self) -> SetWiseDataPlane:
        """The data plane. Raises Unsupported if Cleave creates no logs there."""
        if not isinstance(self._plane, SetWiseDataPlane):
            raise Unsupported(
                f"data plane {self._plane.name!r} makes no logs for Cleave: its broker keeps the layouts"
            )
        return self._plane


def _portions(successors: Iterable[Successor]) -> Iterator[list[Successor]]:
    """Yield portions of successors with at most `MOST_CURSORS` cursors each. A successor with more cursors is a
    portion by itself.
    """
    portion: list[Successor] = []
    cursors = 0
    for successor in successors:
        if portion and cursors + len(successor.subscriptions) > MOST_CURSORS:
            yield portion
            portion, cursors = [], 0
        portion.append(successor)
        cursors += len(successor.subscriptions)
    if portion:
        yield portion


def _gates_detail(subject: ObservedOperation) -> Detail:
    """Return the journal's detail about the children's gates: the subscriptions for which each child has a
    gate. Empty if there are none, or if the operation replaces no logs.
    """
    names = subject.observed.stock_subscriptions if subject.operation.kind.succeeds_logs else ()
    return {"gates closed for": list(names)} if names else {}


def _subscriptions_detail(carried: Collection[str], recorded: Collection[str]) -> Detail:
    """Return the journal's detail about the children's subscriptions: all of them, and those without a row."""
    unrecorded = sorted({*carried} - {*recorded})
    return {"subscriptions": sorted(carried)} | ({"made by applications": unrecorded} if unrecorded else {})
