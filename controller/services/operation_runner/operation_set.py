"""Drives claimed operations: chooses the step of each, has it performed, and records it, until each operation
has finished, is deferred or has lost its claim, or the runner stops.

A single operation is a set of one. Operations with the same next step take it together, in one call and one
record. An operation with an obstacle (a row or a log that another process holds, subscriptions that changed,
a violated constraint) is tried again alone, and the others continue. Operations past their fence come first,
because their ranges have no log that accepts writes.

A claim is a term and an expiry by the database's clock. A data-plane call is made only while the claims will
outlive it, and a takeover waits for the expiry plus the longest call, so two runners never act at the same
time. A write of a stale runner is refused (FencedOut). `after_a_failure` decides what happens after a failed step.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TypeVar

from controller import metrics, telemetry
from controller.dataplane.base import DataPlane, SetWiseDataPlane
from controller.domain.errors import (
    CleaveError,
    DataPlaneTimeout,
    FencedOut,
    HeldUp,
    InvariantViolated,
    LostRace,
    Retryable,
    StoreUnavailable,
    Terminal,
    UnmanagedLog,
)
from controller.domain.next_step import Observed, next_step, why_aborted
from controller.domain.operation import CONSUMERS, Operation, OperationState
from controller.domain.operation_steps import Step
from controller.services.operation_runner import backoff
from controller.services.operation_runner.after_a_failure import Reaction, after_failure
from controller.services.operation_runner.context import Outcome, RunnerContext
from controller.services.operation_runner.log_steps import LogSteps, ObservedOperation, StepResults
from controller.services.operation_runner.mirror_steps import MirrorSteps
from controller.store.journal import claim_check, claims, commits, steps
from controller.store.journal.claims import Claim
from controller.store.journal.steps import FORGETTABLE, PREPARED_ON_DISK, StepRecord
from controller.store.postgres.engine import count_race
from controller.store.topics import held_topics

log = telemetry.get_logger(__name__)

Result = TypeVar("Result")
Transition = tuple[Step, OperationState]
"""A step, and the state that follows when the step succeeds."""

NO_THREAD = "can't start new thread"
"""Text of Python's RuntimeError if the process can start no thread."""
_URGENCY = (Step.COMMIT, Step.SYNC_SUBSCRIPTIONS, Step.TERMINATE_PARENTS)
"""Steps past the fence, the most urgent first."""


@dataclass(slots=True, eq=False)
class _Member:
    """One operation of the set: its recorded state, and the observations since."""

    operation: Operation
    observed: Observed | None
    """Last observation; None if the operation must be observed before the next step is chosen."""
    carried: frozenset[str] = frozenset()
    """Subscriptions known to exist on the children."""
    positions: Mapping[str, str] = field(default_factory=dict)
    """End positions of the parents that were terminated under this claim: a terminated log never opens again.
    """
    abort_reason: str = ""
    """Reason why the next step is the abort; empty if the operation goes on."""
    left_undone: str = ""
    """Reason why the operation finishes without its last action; empty if it performs the action."""
    lost_races: int = 0
    """Number of lost races since the last recorded step."""
    ready_at: float = 0.0
    """Monotonic time before which the operation is not tried again."""
    outcome: Outcome | None = None
    """End of the run for this operation; None while it goes on."""

    @property
    def operation_id(self) -> int:
        """Id of the operation, by which results are returned."""
        return self.operation.operation_id

    def needs_no_call_for(self, step: Step) -> bool:
        """Return True if the step makes no data-plane call for the logs of this operation. This holds for COMMIT, and
        for TERMINATE_PARENTS if all logs that the operation fences were terminated under this claim; in that case
        only gates, if there are any, still need calls. Return False for any other step.
        """
        if step is Step.COMMIT:
            return True
        return step is Step.TERMINATE_PARENTS and self.positions.keys() >= {*self.operation.fenced_topics}

    def observation(self) -> Observed:
        """Return the observation on which the next step is chosen, marked as refused if the next step is the
        abort (`abort_reason`). Raises ValueError if the operation was not observed since its last step.
        """
        if self.observed is None:
            raise ValueError(f"operation {self.operation_id} was not looked at")
        return replace(self.observed, is_refused=True) if self.abort_reason else self.observed


class OperationSet:
    """Performs the steps of operations that were claimed at the same time: several that share calls on one
    data plane, or a single operation.
    """

    def __init__(self, context: RunnerContext, claimed: Sequence[Claim], claimed_until: float) -> None:
        """`claimed_until` is the monotonic time at which the claims end, counted from before they were
        requested. For each operation that is claimed for the first time, observes as a metric the time since
        its intent.
        """
        self._context = context
        self._members = [_Member(claim.operation, claim.observed) for claim in claimed]
        for claim in claimed:
            if claim.operation.state is OperationState.INTENDED and claim.operation.claim_term == 1:
                metrics.NOTIFICATION_LAG.observe(claim.observed.age_ms / 1000)
        self._claimed_until = claimed_until
        self._calling: Sequence[int] = ()
        """Ids of the operations for which the present calls are made."""

    def drive(self) -> list[Outcome]:
        """Perform and record steps until every operation has an outcome. Return the outcomes in the order of the
        claims: FINISHED, DEFERRED, FENCED_OUT or STOPPED. The error of a step is handled and recorded, not raised.

        Between steps, if the runner should stop, the claims of the operations without an outcome are released, and
        these operations end as STOPPED. The thread sleeps while all operations wait for their next try. Raises errors
        of the store, such as StoreUnavailable: the recorded steps stay, and the other claims are not released.
        """
        self._defer_late_calls(self._under_way())
        while members := self._under_way():
            if self._context.should_stop():
                self._release_claims(members)
                break
            self._observe([member for member in members if member.observed is None])
            if observed_members := self._under_way():
                self._take_next(observed_members)
        return [member.outcome or Outcome.STOPPED for member in self._members]

    def _under_way(self) -> list[_Member]:
        """Return the members without an outcome, in the order of the claims."""
        return [member for member in self._members if member.outcome is None]

    def _defer_late_calls(self, members: Sequence[_Member]) -> None:
        """Defer each of these operations for which an earlier call of this process timed out and may still be in
        progress. Another attempt is due when the call must have ended. The operation was claimed again because the
        record of its deferral was lost, or it is about to end an abort. An operation whose claim is lost ends as
        FENCED_OUT. Raises the errors of `Store.single_statement`.
        """
        now = self._context.clock.monotonic_seconds()
        for member in members:
            late_seconds = self._context.in_progress.late_seconds(member.operation_id, now)
            if late_seconds > 0:
                self._defer(member, "a call that timed out may still be under way", late_seconds)

    def _observe(self, members: Sequence[_Member]) -> None:
        """Read the present state of these operations and their topics from the journal, and store it in each member's
        `observed`, on which the next step is chosen. An operation that has no row, because a fail-over lost the row,
        ends with the outcome FENCED_OUT. Does nothing without members. Raises the errors of `Store.single_statement`.
        """
        if not members:
            return
        with self._context.store.single_statement() as tx:
            observations = steps.observe(tx, [member.operation for member in members])
        for member in members:
            member.observed = observations.get(member.operation_id)
            if member.observed is None:  # a fail-over lost the intent
                self._end_as_taken_over(
                    member, claim_check.fenced_out(member.operation, self._context.claimant)
                )

    def _take_next(self, members: Sequence[_Member]) -> None:
        """Choose the next step of each operation that is ready (its `ready_at` has passed), and take the most urgent
        of these steps, by `_urgency`, together for the operations with this step. If no operation is ready, only
        sleep until the first one is. Each member must have been observed. An operation whose next step is WAIT is
        deferred, with a reason that says for what it waits. An operation whose abort is to be finished is deferred
        while a call that timed out may still be in progress.

        If some of the operations with this step finish without their last action, only these are taken. Operations
        without a lost race go before operations that lost a race. The latter are taken one at a time, unless the step
        needs no call. The remaining operations are taken by later calls. Raises the errors of `_take` and `_defer`,
        which are errors of the store.
        """
        now = self._context.clock.monotonic_seconds()
        transitions = {
            member: next_step(member.operation, member.observation())
            for member in members
            if member.ready_at <= now
        }
        if not transitions:
            time.sleep(max(min(member.ready_at for member in members) - now, 0.0))
            return
        transition = min(transitions.values(), key=_urgency)
        sharing = [member for member, next_transition in transitions.items() if next_transition == transition]
        sharing = [member for member in sharing if member.left_undone] or sharing
        without_lost_race = [member for member in sharing if not member.lost_races]
        if without_lost_race:
            sharing = without_lost_race
        elif not all(member.needs_no_call_for(transition[0]) for member in sharing):
            # Each operation that lost a race makes its calls alone. A commit makes no call, so it stays shared.
            sharing = sharing[:1]
        if transition[0] is Step.FINISH_ABORT:
            # The step has the effects of the operation undone, and a late call would bring them back afterwards.
            self._defer_late_calls(sharing)
            sharing = [member for member in sharing if member.outcome is None]
        if transition[0] is Step.WAIT:
            for member in sharing:
                observed = member.observation()
                reason = (
                    "waits for older operations of the topic"
                    if observed.other_live_operations
                    else f"waits until {observed.readers} bucket(s) are released; `cleave consumers why` says by whom"
                )
                self._defer(member, reason, backoff.wait_seconds(observed.age_ms / 1000), is_wait=True)
        elif sharing:
            self._take(transition, sharing)

    def _take(self, transition: Transition, members: Sequence[_Member]) -> None:
        """Take one step of all these operations. If the step fails, each operation that the error concerns is tried
        again, aborted, deferred or ended (`_handle_error`). StoreUnavailable is raised instead, and so is an error of
        the store that occurs while the first error is handled.

        After a Terminal error of several operations, the step is taken again for each half, because one operation may
        be the cause. Operations that already have an outcome, and operations whose step was recorded before the
        error, are left out.
        """
        before = {member: member.operation for member in members if member.outcome is None}
        try:
            self._do_and_record(transition, list(before))
        except StoreUnavailable:
            raise
        except Exception as exception:  # noqa: BLE001 - logged by `_as_cleave_error`
            error = _as_cleave_error(exception)
            failed = [
                member
                for member, operation in before.items()
                if member.operation is operation and member.outcome is None
            ]
            if len(failed) > 1 and isinstance(error, Terminal):
                for half in _halves(failed):
                    self._take(transition, half)
                return
            for member in failed:
                self._handle_error(member, error)

    def _do_and_record(self, transition: Transition, members: Sequence[_Member]) -> None:
        """Renew the claims if necessary, perform the step, and record it for each operation that has details in the
        results. Then handle the errors of the other operations. The subscriptions and end positions that the step
        found are stored in the members before the step is recorded.

        Raises an error that concerns all operations: an error of a data-plane call, HeldUp if a claim is lost (its
        operation has ended as FENCED_OUT by then), or an error of the store. Operations that were recorded before the
        error stay recorded.
        """
        step, _ = transition
        self._calling = [member.operation_id for member in members]
        self._hold_claims()  # for steps without a call; without it a late record would be refused, and done once more
        results = self._act(step, members)
        for member in members:
            member.carried = results.carried.get(member.operation_id, member.carried)
            member.positions = results.positions.get(member.operation_id, member.positions)
        records = {
            member: self._record_of(member, transition, results)
            for member in members
            if member.operation_id in results.details
        }
        for group in _by_steps(records):
            self._record(group)
        for member in members:
            if member.operation_id in results.errors:
                self._handle_error(member, results.errors[member.operation_id])

    def _act(self, step: Step, members: Sequence[_Member]) -> StepResults:
        """Perform the step for these operations, and return details or an error for each of them. Writes nothing to
        the operations' rows. The details of `ABORT`, which makes no call, are the reason of the abort. An operation
        that finishes without its last action makes no call; its details are the reason.

        A mirrored operation, which must be the only member, makes its calls at the broker (`MirrorSteps`). Other
        operations make no call for `COMMIT`, and for `FINISH_ABORT` unless the operation creates a subscription of
        standard consumers, which has gates. Otherwise they act on the logs (`LogSteps`). Raises
        Retryable if a call is needed and the data plane is not configured in this process, and the errors
        of `MirrorSteps.perform` and `LogSteps.perform`.
        """
        if step is Step.ABORT:
            return StepResults(
                {
                    member.operation_id: {"reason": member.abort_reason or why_aborted(member.observation())}
                    for member in members
                }
            )
        if any(member.operation.is_mirrored and not member.left_undone for member in members):
            [mirrored] = members
            mirror_acts = MirrorSteps(
                self._context.store, self._plane_of(mirrored), mirrored.operation, self._call_all
            )
            return StepResults({mirrored.operation_id: mirror_acts.perform(step)})
        has_gates = any(CONSUMERS in member.operation.parameters for member in members)
        needs_no_call = step is Step.COMMIT or (step is Step.FINISH_ABORT and not has_gates)
        if needs_no_call or all(member.left_undone for member in members):
            # The step needs no call, so that it can be taken where the data plane is not configured.
            return StepResults({member.operation_id: _left_undone(member) for member in members})
        plane = self._plane_of(members[0])()
        subjects = [
            ObservedOperation(member.operation, member.observation(), member.carried, member.positions)
            for member in members
        ]
        return LogSteps(self._context.store, plane, self._call_all).perform(step, subjects)

    def _record_of(self, member: _Member, transition: Transition, results: StepResults) -> StepRecord:
        """Return the record of the step that was performed, with the details from `results`. Writes nothing. If the
        following step is SET_FENCING or COMMIT, which needs no action, the record includes the following step as
        well, except for mirrored topics. A step that creates subscriptions on the children also records the version
        of the subscriptions. `results` must have details of the member.
        """
        step, leads_to = transition
        notes_subscriptions = step in (Step.CREATE_CHILDREN, Step.SET_FENCING, Step.SYNC_SUBSCRIPTIONS)
        record = StepRecord(
            member.operation,
            (transition,),
            results.details[member.operation_id],
            member.observation().subscription_version if notes_subscriptions else None,
        )
        if not leads_to.is_live or member.operation.is_mirrored:
            return record
        following = next_step(record.moved(), member.observation())
        is_free = following[0] in (Step.SET_FENCING, Step.COMMIT)
        return replace(record, moves=(transition, following)) if is_free else record

    def _record(self, records: dict[_Member, StepRecord]) -> None:
        """Record the steps under the claims, and apply them to the members. All records must have the same steps. If
        the last step is a commit or the end of an abort, the same transaction makes the changes of the commit or
        abort. The context's checkpoint is called before and after the record, once for each step.

        An operation that the record leaves unchanged is handled as a lost race or a lost claim, without an error. An
        operation that is not a reshape of Cleave's own logs is committed, and every abort is ended, in a transaction
        of its own (`_end`), whose error, such as FencedOut or LostRace, is raised: operations before it stay
        committed, later ones are not tried. Also raises StoreUnavailable.
        """
        recorded_steps = [step for step, _ in next(iter(records.values())).moves]
        for step in recorded_steps:
            self._context.checkpoint(f"{step}:before")
        if recorded_steps[-1] is Step.COMMIT and all(_is_own_reshape(member.operation) for member in records):
            self._commit_reshapes(records)
        elif recorded_steps[-1] in (Step.COMMIT, Step.FINISH_ABORT):
            for member, record in records.items():
                self._end(member, record)
        else:
            self._record_steps(records)
        for step in recorded_steps:
            self._context.checkpoint(f"{step}:after")

    def _record_steps(self, records: dict[_Member, StepRecord]) -> None:
        """Record the steps of all operations in one statement, and apply the records to the members whose rows were
        written. Each other operation is handled as a lost race or a lost claim (`_handle_unrecorded`). All records
        must lead to the same state. Raises the errors of `Store.single_statement`, after which no step is recorded.
        """
        leads_to = next(iter(records.values())).leads_to
        with self._context.store.single_statement() as tx:
            recorded_at_ms = steps.record(
                tx,
                list(records.values()),
                self._context.claimant,
                started_at_ms=min(member.observation().now_ms for member in records),
                waits_for_disk=self._waits_for_disk(leads_to, next(iter(records))),
            )
        for member, record in records.items():
            if member.operation_id in recorded_at_ms:
                self._apply_record(member, record, recorded_at_ms[member.operation_id])
        self._handle_unrecorded([member for member in records if member.operation_id not in recorded_at_ms])

    def _waits_for_disk(self, leads_to: OperationState, member: _Member) -> bool:
        """Return True if the transaction that records a step to the state `leads_to` must be on disk before the
        operation goes on. Return False for the states in `FORGETTABLE`, except for the state PREPARED of the kinds in
        `PREPARED_ON_DISK`. Also return False for FENCING, the announcement of a fence, if the logs to be terminated
        are in the journal's server, which loses both together. A data plane that is not configured here gives True
        for FENCING. `member` is one of the recorded operations, which all make the same step on one data plane.
        """
        if leads_to is OperationState.PREPARED and member.operation.kind in PREPARED_ON_DISK:
            return True
        if leads_to is not OperationState.FENCING:
            return leads_to not in FORGETTABLE
        plane = self._context.planes.get(member.operation.data_plane)
        return not (isinstance(plane, SetWiseDataPlane) and plane.shares_journal_server)

    def _commit_reshapes(self, records: dict[_Member, StepRecord]) -> None:
        """Commit the layouts of these reshapes, and apply the records to the members. Operations of one topic are
        committed one after another, in the order of the records, because each has an epoch of its own; operations of
        different topics share a transaction. A refusal or an error of an operation is handled (`_handle_error`), not
        raised, except StoreUnavailable and other errors of the store in the handling.
        """
        for members in _in_distinct_topics(records):
            self._commit_turn({member: records[member] for member in members})

    def _commit_turn(self, records: dict[_Member, StepRecord]) -> None:
        """Commit the layouts of these reshapes, of which no two have the same topic, in one transaction. Apply the
        records of the committed operations to their members. For an operation that the transaction skipped, the
        reason is read, counted if it is a lost race, and handled (`_handle_error`).

        If an error ends the transaction, each half of the operations is committed by itself, down to a single
        operation, whose error is handled. StoreUnavailable is raised at once. Errors of the store while a reason is
        read or an error is handled are raised too; the commit stays.
        """
        runner, started_at_ms = self._context.claimant, min(member.observation().now_ms for member in records)
        members = list(records)
        try:
            with self._context.store.single_statement() as tx:
                committed = commits.commit_reshapes(
                    tx, list(records.values()), runner, started_at_ms=started_at_ms
                )
        except StoreUnavailable:
            raise
        except Exception as exception:  # noqa: BLE001 - logged by `_as_cleave_error`
            error = _as_cleave_error(exception)
            if len(members) == 1:
                self._handle_error(members[0], error)
                return
            for half in _halves(members):
                self._commit_turn({member: records[member] for member in half})
            return
        uncommitted = [record for member, record in records.items() if member.operation_id not in committed]
        reasons: dict[int, CleaveError] = {}
        if uncommitted:
            with self._context.store.single_statement() as tx:
                reasons = commits.why_skipped(tx, uncommitted, runner)
        for member, record in records.items():
            if (layout_commit := committed.get(member.operation_id)) is None:
                count_race(reasons[member.operation_id])
                self._handle_error(member, reasons[member.operation_id])
                continue
            member.carried |= layout_commit.subscriptions
            self._apply_record(member, record, layout_commit.now_ms, epoch=layout_commit.epoch)

    def _end(self, member: _Member, record: StepRecord) -> None:
        """In one transaction, record the steps and commit one operation that is not a reshape of Cleave's own logs,
        or, if the record leads to ABORTED, end the abort of an operation of any kind. Then apply the record to the
        member. Raises the errors of `commits.commit_one` or `commits.abort`, such as FencedOut, LostRace and HeldUp,
        and the errors of `Store.transaction`; then nothing is written and the member does not change.
        """
        runner, started_at_ms = self._context.claimant, member.observation().now_ms
        with self._context.store.transaction() as tx:
            if record.leads_to is OperationState.ABORTED:
                committed = commits.abort(tx, record, runner, started_at_ms=started_at_ms)
            else:
                committed = commits.commit_one(tx, record, runner, started_at_ms=started_at_ms)
        self._apply_record(member, record, committed.now_ms, epoch=committed.epoch)

    def _apply_record(
        self, member: _Member, record: StepRecord, now_ms: int, *, epoch: int | None = None
    ) -> None:
        """Apply to the member a step that the journal has recorded, log the step, and reset the member's lost races.
        If the operation is final, the member ends with the outcome FINISHED, which is logged and counted in the
        metrics. `now_ms` is the database's time of the record, in milliseconds since the Unix epoch. `epoch` is the
        layout epoch that was committed; None keeps the operation's epoch. Writes nothing to the store.

        The member's observation is kept, with the later time, only in the states FENCING and COMMITTED, whose next
        step is always the same. In any other state the observation is discarded, so that the next step is chosen on a
        new observation.
        """
        took_ms = now_ms - member.observation().now_ms
        age_ms = member.observation().age_ms + took_ms
        operation_after = record.moved()
        operation = operation_after if epoch is None else replace(operation_after, epoch=epoch)
        member.operation = operation
        self._log_steps(operation, record, took_ms)
        goes_forward = operation.state in (OperationState.FENCING, OperationState.COMMITTED)
        member.observed = (
            replace(member.observation(), now_ms=now_ms, age_ms=age_ms) if goes_forward else None
        )
        member.lost_races, member.ready_at = 0, 0.0
        if not operation.state.is_live:
            self._end_member(member, Outcome.FINISHED)
            metrics.OPERATIONS.labels(operation.kind, operation.origin, operation.state).inc()
            if operation.state is OperationState.DONE:
                metrics.OPERATION_SECONDS.labels(operation.kind).observe(age_ms / 1000)
            log.info(
                "operation ended",
                **self._ids(operation),
                state=operation.state.value,
                origin=operation.origin.value,
                epoch=operation.epoch,
                duration_seconds=age_ms / 1000,
            )

    def _log_steps(self, operation: Operation, record: StepRecord, took_ms: int) -> None:
        """Log a line for each step; two steps that were recorded as one share their duration."""
        for step, leads_to in record.moves:
            log.info(
                "operation step",
                **self._ids(operation),
                step=step.value,
                state=leads_to.value,
                duration_seconds=took_ms / 1000,
            )

    def _ids(self, operation: Operation) -> dict[str, object]:
        """Return the fields of a log line that identify the operation and its runner."""
        return {
            "operation_id": operation.operation_id,
            "topic": operation.topic_name,
            "kind": operation.kind.value,
            "runner": self._context.runner_id,
        }

    def _handle_unrecorded(self, members: Sequence[_Member]) -> None:
        """Handle operations whose rows a record did not change. If the runner still has the claim and the operation
        still has its state, a condition of the step no longer holds: an abort was requested, the deadline has passed,
        or the topic is being deleted. This counts as a lost race in the metric and is handled as LostRace, so that
        the operation is observed again. In any other case the claim is lost, and the operation ends as FENCED_OUT.
        Does nothing without members. Raises the errors of `Store.single_statement`.
        """
        if not members:
            return
        runner = self._context.claimant
        with self._context.store.single_statement() as tx:
            still_claimed = claim_check.still_held(tx, [member.operation for member in members], runner)
        for member in members:
            if member.operation_id in still_claimed:
                race = LostRace(
                    f"topic {member.operation.topic_name} changed; looking again", 0.0, what="operation"
                )
                count_race(race)
                self._handle_error(member, race)
            else:
                self._handle_error(member, claim_check.fenced_out(member.operation, runner))

    def _handle_error(self, member: _Member, error: CleaveError) -> None:
        """Discard the operation's observation, and react to the error as `after_failure` decides: try the step again
        after a pause, abort the operation next, finish it without its last action, defer it (recorded in the journal,
        with the outcome DEFERRED), or end it as FENCED_OUT. The error itself is not raised. If the operation already
        has an outcome, only the observation is discarded.

        UnmanagedLog also marks the topic as unverified in the store, because the journal may be older than the logs:
        the logs are compared before Cleave acts on the topic again. Raises the errors of `Store.single_statement`.
        """
        last_observation, member.observed = member.observed, None
        if member.outcome is not None:
            return
        if isinstance(error, UnmanagedLog):  # the journal may be older than its logs
            with self._context.store.single_statement() as tx:
                held_topics.doubt(tx, [member.operation.topic_id])
        reaction, delay_seconds = after_failure(
            error,
            member.operation,
            last_observation,
            self._context.call_timeout_seconds,
            lost_races=member.lost_races,
            is_aborted_next=bool(member.abort_reason),
            is_action_left_out=bool(member.left_undone),
        )
        if reaction is Reaction.LEAVE:
            self._end_as_taken_over(member, error)
        elif reaction is Reaction.TRY_AGAIN:
            member.lost_races += 1
            member.ready_at = self._context.clock.monotonic_seconds() + delay_seconds
        elif reaction is Reaction.ABORT:
            member.abort_reason = str(error)
        elif reaction is Reaction.FINISH_WITHOUT:
            member.left_undone = str(error)
        else:
            now = self._context.clock.monotonic_seconds()
            late_seconds = self._context.in_progress.late_seconds(member.operation_id, now)
            self._defer(member, str(error), max(delay_seconds, late_seconds))

    def _defer(self, member: _Member, reason: str, delay_seconds: float, *, is_wait: bool = False) -> None:
        """Log the reason, then store it as the operation's error, count the attempt and release the claim. With
        `is_wait`, the operation only waits for others: the attempt does not count, and a reason that is stored
        already is not logged again. The operation ends here with the outcome DEFERRED; another attempt is due after
        `delay_seconds`. If the claim is lost, nothing is stored and the outcome is FENCED_OUT. Raises the errors of
        `Store.single_statement`.
        """
        if not (is_wait and reason == member.operation.last_error):
            log.info(
                "operation deferred",
                **self._ids(member.operation),
                reason=reason,
                delay_seconds=round(delay_seconds, 3),
            )
        try:
            with self._context.store.single_statement() as tx:
                claims.record_failure(
                    tx, member.operation, self._context.claimant, reason, delay_seconds, is_wait=is_wait
                )
        except FencedOut as error:
            self._end_as_taken_over(member, error)
        else:
            self._end_member(member, Outcome.DEFERRED)

    def _end_as_taken_over(self, member: _Member, error: CleaveError) -> None:
        """Log that the claim is lost, and end the operation here as FENCED_OUT."""
        log.warning("operation taken over", **self._ids(member.operation), error=str(error))
        self._end_member(member, Outcome.FENCED_OUT)

    def _release_claims(self, members: Sequence[_Member]) -> None:
        """Release the claims in the journal, so that any runner may continue at once, and end the operations here
        with the outcome STOPPED. A claim that is lost already is skipped, and its operation also ends as STOPPED.
        Raises the errors of `Store.single_statement`; then no operation ends.
        """
        with self._context.store.single_statement() as tx:
            claims.release(tx, [member.operation for member in members], self._context.claimant)
        for member in members:
            self._end_member(member, Outcome.STOPPED)

    def _end_member(self, member: _Member, outcome: Outcome) -> None:
        """Set the member's outcome, after which the set takes no step of it. A thread of this runner may then
        claim the operation again.
        """
        member.outcome = outcome
        self._context.in_progress.remove([member.operation])

    def _plane_of(self, member: _Member) -> Callable[[], DataPlane]:
        """Return a function that returns the operation's data plane. The function is called only if a step needs
        the data plane, so that a pure commit runs in any process. The function raises Retryable if the
        data plane is not configured in this process.
        """
        name, topic = member.operation.data_plane, member.operation.topic_name

        def plane() -> DataPlane:
            if name not in self._context.planes:
                raise Retryable(  # not DataPlaneUnavailable, by which a late operation is given up
                    f"data plane {name!r} of topic {topic} is not configured in this process; "
                    f"run the operation where it is (here: {', '.join(sorted(self._context.planes)) or 'none'})",
                    delay_seconds=backoff.LONGEST_DELAY_SECONDS,
                )
            return self._context.planes[name]

        return plane

    def _call_all(self, calls: Sequence[Callable[[], Result]], seconds: float | None = None) -> list[Result]:
        """Make the calls, up to `parallel_calls` at a time in threads, and return the results in order. Before each
        group of calls, the claims are renewed if they might end before the calls. Calls for which the process can
        start no thread are made after the others of the group, one by one; before each, the claims are renewed in the
        same way. `seconds` is the longest time of one call; None: the time-out of an ordinary call. No calls: returns
        an empty list.

        Raises the first error in the order of the calls. The other calls in threads have ended by then and may have
        taken effect; no further call is made. Raises HeldUp before a group or a call if a claim is lost, or if a call
        might outlive the renewed claims, and the errors of `Store.single_statement` if the renewal fails.
        """
        results: list[Result] = []
        longest_seconds = self._context.call_timeout_seconds if seconds is None else seconds
        make_call = partial(self._called, longest_seconds)
        for wave in _waves(calls, self._context.parallel_calls):
            self._hold_claims(longest_seconds)
            if len(wave) == 1:
                results.append(make_call(wave[0]))
                continue
            with ExitStack() as threads:
                futures = [_in_thread(threads, partial(make_call, call)) for call in wave]
            for call, future in zip(wave, futures, strict=True):
                if future is None:
                    self._hold_claims(longest_seconds)
                results.append(make_call(call) if future is None else future.result())
        return results

    def _called(self, longest_seconds: float, call: Callable[[], Result]) -> Result:
        """Make the call, and return its result. Raises the error of the call.

        After DataPlaneTimeout, and after a shortage of threads or memory (`_is_shortage`), the call may be in
        progress for another `longest_seconds`, the longest time of one call. This time is noted in `in_progress` for
        the operations of the present calls (`_calling`), so that their deferral lasts at least as long, even if the
        error of another call is raised.
        """
        try:
            return call()
        except Exception as error:
            if isinstance(error, DataPlaneTimeout) or _is_shortage(error):
                until = self._context.clock.monotonic_seconds() + longest_seconds
                self._context.in_progress.note_late_call(self._calling, until)
            raise

    def _hold_claims(self, longest_seconds: float | None = None) -> None:
        """Renew the claims of all operations without an outcome, for another `lease_seconds` (of the context), if a
        call that starts at this moment might outlive the claims. Otherwise do nothing. `longest_seconds` is the
        longest time of the call; None, or less than the time-out of an ordinary call, counts as this time-out.

        An operation whose claim is lost ends as FENCED_OUT. Raises HeldUp if there is such an operation, so that the
        step is chosen again without it, and if the renewal took so long that the call might outlive the renewed
        claims. Also raises the errors of `Store.single_statement`.
        """
        clock, call_timeout_seconds = self._context.clock, self._context.call_timeout_seconds
        longest_seconds = max(call_timeout_seconds, longest_seconds or 0.0)
        requested_at = clock.monotonic_seconds()
        if self._claimed_until - requested_at > longest_seconds:
            return
        runner = self._context.claimant
        with self._context.store.single_statement() as tx:
            renewed = claims.renew(
                tx, [member.operation for member in self._under_way()], runner, self._context.lease_seconds
            )
        self._claimed_until = requested_at + self._context.lease_seconds
        still_claimed = [member.operation for member in self._under_way() if member.operation_id in renewed]
        self._context.in_progress.add(still_claimed, self._claimed_until + call_timeout_seconds)
        lost_members = [member for member in self._under_way() if member.operation_id not in renewed]
        for member in lost_members:
            self._end_as_taken_over(member, claim_check.fenced_out(member.operation, runner))
        if lost_members:
            raise HeldUp(f"{len(lost_members)} claim(s) are lost; going on without them", 0.0)
        if self._claimed_until - clock.monotonic_seconds() <= longest_seconds:
            raise HeldUp("renewing the claims took as long as they last; trying again", 0.0)


def _as_cleave_error(exception: Exception) -> CleaveError:
    """Return the exception as a CleaveError. An exception of any other class is logged with its traceback and
    becomes InvariantViolated, because it would otherwise end every operation of the set. If the process has no thread
    or memory left, the exception becomes Retryable, which passes.
    """
    if isinstance(exception, CleaveError):
        return exception
    if _is_shortage(exception):
        return Retryable(  # not DataPlaneUnavailable, by which a late operation is given up
            f"this process has no thread or memory left: {exception!r}", backoff.LONGEST_DELAY_SECONDS
        )
    # not `exc_info`: to draw all values on the stack may take longer than the claims last
    log.error("operation step raised what no step may raise", traceback=traceback.format_exc())
    return InvariantViolated(f"a step raised {type(exception).__name__}: {exception}; see the worker's log")


def _is_shortage(exception: Exception) -> bool:
    """Return True if the exception says that this process has no thread or memory left."""
    return isinstance(exception, MemoryError) or NO_THREAD in str(exception)


def _in_thread(threads: ExitStack, call: Callable[[], Result]) -> Future[Result] | None:
    """Make the call in a thread of its own, for whose end `threads` waits. Return None if the process can start no
    thread; the call is not made then.
    """
    # In a pool that several calls share, another thread would make the call whose thread cannot be started.
    pool = threads.enter_context(ThreadPoolExecutor(1))
    try:
        return pool.submit(call)
    except (RuntimeError, MemoryError):
        return None


def _halves(members: Sequence[_Member]) -> tuple[Sequence[_Member], Sequence[_Member]]:
    return members[: len(members) // 2], members[len(members) // 2 :]


def _left_undone(member: _Member) -> dict[str, object]:
    """Return the journal's detail about the action that was left out; empty if none was."""
    return {"left undone": member.left_undone} if member.left_undone else {}


def _urgency(transition: Transition) -> tuple[int, str]:
    """Return the sort key of a transition: steps past the fence first, then the other steps by name."""
    step, _ = transition
    return (_URGENCY.index(step) if step in _URGENCY else len(_URGENCY)), step.value


def _is_own_reshape(operation: Operation) -> bool:
    return operation.kind.is_reshape and not operation.is_mirrored


def _by_steps(records: dict[_Member, StepRecord]) -> Iterator[dict[_Member, StepRecord]]:
    """Yield groups of records with the same steps. The steps differ if only some operations have to apply a
    change of subscriptions before they commit.
    """
    groups: dict[tuple[Transition, ...], dict[_Member, StepRecord]] = {}
    for member, record in records.items():
        groups.setdefault(record.moves, {})[member] = record
    yield from groups.values()


def _in_distinct_topics(members: dict[_Member, StepRecord]) -> Iterator[list[_Member]]:
    """Yield groups of the operations in which no topic occurs twice. Operations of one topic keep their
    order.
    """
    waiting = list(members)
    while waiting:
        by_topic = {member.operation.topic_id: member for member in reversed(waiting)}
        yield list(by_topic.values())
        waiting = [member for member in waiting if member is not by_topic[member.operation.topic_id]]


def _waves(calls: Sequence[Callable[[], Result]], size: int) -> Iterator[list[Callable[[], Result]]]:
    """Yield the calls in their order, in groups of up to `size`."""
    rest = iter(calls)
    while wave := list(islice(rest, size)):
        yield wave
