"""Drives claimed operations: chooses the step of each, has it performed, and records it, until each operation
has finished, is deferred or has lost its claim, or the runner stops.

A single operation is a set of one. Operations with the same next step take it together, in one call and one
record. An operation with an obstacle (a row or a log that another process holds, subscriptions that changed,
a violated constraint) is tried again alone, and the others continue. Operations past their fence come first,
because their ranges have no log that accepts writes.

A claim is a term and an expiry by the database's clock. A data-plane call is made only while the claims will
outlive it, and a takeover waits for the expiry plus the longest call, so two runners never act at the same
time. A write of a stale runner is refused (FencedOut). Errors before the fence lead to an abort; errors after
it lead to another attempt, never to an abort.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TypeVar

from controller import metrics, telemetry
from controller.dataplane.base import DataPlane, SetWiseDataPlane
from controller.domain.errors import (
    CleaveError,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    FencedOut,
    HeldUp,
    InvariantViolated,
    LostRace,
    StoreUnavailable,
    Terminal,
    UnmanagedLog,
)
from controller.domain.operation import (
    NOT_ABORTABLE,
    Observed,
    Operation,
    OperationState,
    Step,
    can_give_up,
    next_step,
    why_aborted,
)
from controller.services.operation_runner import backoff
from controller.services.operation_runner.context import Outcome, RunnerContext
from controller.services.operation_runner.log_steps import LogActs, StepResults, Subject
from controller.services.operation_runner.mirror_acts import MirrorActs
from controller.store.journal import claims, commits, steps
from controller.store.journal.claims import Claim
from controller.store.journal.commits import Committed
from controller.store.journal.steps import FORGETTABLE, StepRecord
from controller.store.postgres.engine import count_race
from controller.store.topics import holds

log = telemetry.get_logger(__name__)

Result = TypeVar("Result")
Move = tuple[Step, OperationState]

_URGENCY = (Step.COMMIT, Step.SYNC_SUBSCRIPTIONS, Step.TERMINATE_PARENTS)
"""Steps past the fence, the most urgent first."""


@dataclass(slots=True, eq=False)
class _Member:
    """One operation of the set: its recorded state, and the observations since."""

    operation: Operation
    observed: Observed | None
    """Last observation; None if the operation must be observed before the next step is chosen."""
    carried: frozenset[str] = frozenset()
    positions: Mapping[str, str] = field(default_factory=dict)
    """End positions of the parents that were terminated under this claim: a terminated log never opens again.
    """
    giving_up: str = ""
    """Reason why the operation is aborted."""
    left_undone: str = ""
    """Reason why the operation finishes without its last action."""
    lost_races: int = 0
    ready_at: float = 0.0
    """Monotonic time before which the operation is not tried again."""
    outcome: Outcome | None = None

    @property
    def operation_id(self) -> int:
        """Id of the operation, by which results are returned."""
        return self.operation.operation_id

    def needs_no_call_for(self, step: Step) -> bool:
        """Return True if the step, and the commit that may follow at once, concern only the journal because
        all parents are terminated.
        """
        if step is Step.COMMIT:
            return True
        return step is Step.TERMINATE_PARENTS and self.positions.keys() >= {*self.operation.fenced_topics}

    def seen(self) -> Observed:
        """Return the observation on which the next step is chosen."""
        if self.observed is None:
            raise ValueError(f"operation {self.operation_id} was not looked at")
        return replace(self.observed, is_refused=True) if self.giving_up else self.observed


class OperationSet:
    """Operations claimed at the same time: several that share calls on one data plane, or one."""

    def __init__(self, context: RunnerContext, claimed: Sequence[Claim], claimed_until: float) -> None:
        """`claimed_until` is a monotonic time, counted from before the claim was requested."""
        self._context = context
        self._members = [_Member(one.operation, one.observed) for one in claimed]
        for one in claimed:
            if one.operation.state is OperationState.INTENDED and one.operation.claim_term == 1:
                metrics.NOTIFICATION_LAG.observe(one.observed.age_ms / 1000)
        self._claimed_until = claimed_until
        self._calling: Sequence[int] = ()
        """Ids of the operations for which the present calls are made."""

    def drive(self) -> list[Outcome]:
        """Perform steps until no operation is left. Return the outcome of each.

        Raises StoreUnavailable: nothing can be recorded then, and the rows have the state of each operation.
        """
        self._leave_late_calls()
        while members := self._under_way():
            if self._context.should_stop():
                self._leave(members)
                break
            self._look_at([one for one in members if one.observed is None])
            self._take_next(self._under_way())
        return [one.outcome or Outcome.STOPPED for one in self._members]

    def _under_way(self) -> list[_Member]:
        return [one for one in self._members if one.outcome is None]

    def _leave_late_calls(self) -> None:
        """Defer the operations for which a call that timed out may be in progress, if the record of their
        deferral was lost.
        """
        now = self._context.clock.monotonic_seconds()
        for one in self._under_way():
            late_seconds = self._context.in_hand.late_seconds(one.operation_id, now)
            if late_seconds > 0:
                self._defer(one, "a call that timed out may still be under way", late_seconds)

    def _look_at(self, members: Sequence[_Member]) -> None:
        """Observe the operations again, after anything but a recorded step: no step is chosen on outdated
        observations.
        """
        if not members:
            return
        with self._context.store.single_statement() as tx:
            seen = steps.observe(tx, [one.operation for one in members])
        for one in members:
            one.observed = seen.get(one.operation_id)
            if one.observed is None:  # a fail-over lost the intent
                self._lose(one, steps.fenced_out(one.operation, self._context.claimant))

    def _take_next(self, members: Sequence[_Member]) -> None:
        """Take the next step of the operations that are most urgent and ready. Pause if all of them must wait
        a moment.
        """
        now = self._context.clock.monotonic_seconds()
        moves = {one: next_step(one.operation, one.seen()) for one in members if one.ready_at <= now}
        if not moves:
            time.sleep(max(min(one.ready_at for one in members) - now, 0.0))
            return
        move = min(moves.values(), key=_urgency)
        chosen = [one for one, wanted in moves.items() if wanted == move]
        chosen = [one for one in chosen if one.left_undone] or chosen
        unhindered = [one for one in chosen if not one.lost_races]
        if unhindered:
            chosen = unhindered
        elif not all(one.needs_no_call_for(move[0]) for one in chosen):
            # Whoever was held up makes calls by itself; a commit makes none and waits for nobody.
            chosen = chosen[:1]
        if move[0] is Step.WAIT:
            for one in chosen:
                seen = one.seen()
                why = (
                    "waits for older operations of the topic"
                    if seen.other_live_operations
                    else f"waits until {seen.readers} bucket(s) are let go of; `cleave consumers why` says by whom"
                )
                self._defer(one, why, backoff.wait_seconds(one.operation.attempts))
        else:
            self._take(move, chosen)

    def _take(self, move: Move, members: Sequence[_Member]) -> None:
        """Take one step of all these operations. If it fails for good for several, each half is tried,
        because one operation may be the cause.
        """
        before = {one: one.operation for one in members if one.outcome is None}
        try:
            self._do_and_record(move, list(before))
        except StoreUnavailable:
            raise
        except Exception as trouble:  # noqa: BLE001 - logged by `_known`
            error = _known(trouble)
            left = [one for one, seen in before.items() if one.operation is seen and one.outcome is None]
            if len(left) > 1 and isinstance(error, Terminal):
                for half in _halves(left):
                    self._take(move, half)
                return
            for one in left:
                self._hindered(one, error)

    def _do_and_record(self, move: Move, members: Sequence[_Member]) -> None:
        step, _ = move
        self._calling = [one.operation_id for one in members]
        self._hold_claims()  # for steps without a call; without it a late record would be refused, and done once more
        acted = self._act(step, members)
        for one in members:
            one.carried = acted.carried.get(one.operation_id, one.carried)
            one.positions = acted.positions.get(one.operation_id, one.positions)
        records = {
            one: self._record_of(one, move, acted) for one in members if one.operation_id in acted.details
        }
        for some in _alike(records):
            self._record(some)
        for one in members:
            if one.operation_id in acted.errors:
                self._hindered(one, acted.errors[one.operation_id])

    def _act(self, step: Step, members: Sequence[_Member]) -> StepResults:
        if step is Step.ABORT:
            return StepResults(
                {one.operation_id: {"reason": one.giving_up or why_aborted(one.seen())} for one in members}
            )
        if any(one.operation.is_mirrored and not one.left_undone for one in members):
            [one] = members
            acts = MirrorActs(self._context.store, self._plane_of(one), one.operation, self._call_all)
            return StepResults({one.operation_id: acts.perform(step)})
        if step in (Step.COMMIT, Step.FINISH_ABORT) or all(one.left_undone for one in members):
            # Nothing to do outside, so that it can be done where the plane is not configured.
            return StepResults({one.operation_id: _left_undone(one) for one in members})
        plane = self._plane_of(members[0])()
        subjects = [Subject(one.operation, one.seen(), one.carried, one.positions) for one in members]
        return LogActs(self._context.store, plane, self._call_all).perform(step, subjects)

    def _record_of(self, member: _Member, move: Move, acted: StepResults) -> StepRecord:
        """Return the record of the step, together with the next step if that needs no action: announcing the
        fence, or committing the layout.
        """
        step, leads_to = move
        notes_subscriptions = step in (Step.CREATE_CHILDREN, Step.SET_FENCING, Step.SYNC_SUBSCRIPTIONS)
        record = StepRecord(
            member.operation,
            (move,),
            acted.details[member.operation_id],
            member.seen().subscription_version if notes_subscriptions else None,
        )
        if not leads_to.is_live or member.operation.is_mirrored:
            return record
        following = next_step(record.moved(), member.seen())
        is_free = following[0] in (Step.SET_FENCING, Step.COMMIT)
        return replace(record, moves=(move, following)) if is_free else record

    def _record(self, records: dict[_Member, StepRecord]) -> None:
        """Commit the steps under the claims. An operation that the record leaves out is observed again, or
        belongs to another runner.
        """
        taken = [step for step, _ in next(iter(records.values())).moves]
        for step in taken:
            self._context.checkpoint(f"{step}:before")
        if taken[-1] is Step.COMMIT and all(_is_own_reshape(one.operation) for one in records):
            self._commit_reshapes(records)
        elif taken[-1] in (Step.COMMIT, Step.FINISH_ABORT):
            for member, record in records.items():
                self._end(member, record)
        else:
            self._record_steps(records)
        for step in taken:
            self._context.checkpoint(f"{step}:after")

    def _record_steps(self, records: dict[_Member, StepRecord]) -> None:
        leads_to = next(iter(records.values())).leads_to
        with self._context.store.single_statement() as tx:
            moved = steps.record(
                tx,
                list(records.values()),
                self._context.claimant,
                started_at_ms=min(one.seen().now_ms for one in records),
                waits_for_disk=self._waits_for_disk(leads_to, next(iter(records))),
            )
        for one, record in records.items():
            if one.operation_id in moved:
                self._moved(one, record, moved[one.operation_id])
        self._left_out([one for one in records if one.operation_id not in moved])

    def _waits_for_disk(self, leads_to: OperationState, member: _Member) -> bool:
        """Return True if the commit must wait for the disk. States in `FORGETTABLE` need not wait. Neither
        does the announcement of a fence if the logs to be terminated are in the journal's server.
        """
        if leads_to is not OperationState.FENCING:
            return leads_to not in FORGETTABLE
        plane = self._context.planes.get(member.operation.data_plane)
        return not (isinstance(plane, SetWiseDataPlane) and plane.shares_journal_server)

    def _commit_reshapes(self, records: dict[_Member, StepRecord]) -> None:
        """Commit the layouts. Operations of one topic follow one another, because each has an epoch of its
        own.
        """
        for turn in _one_a_topic(records):
            self._commit_turn({one: records[one] for one in turn})

    def _commit_turn(self, records: dict[_Member, StepRecord]) -> None:
        """Commit all operations in one transaction. If it violates a constraint, each half is tried, down to
        the operation that violates it.
        """
        runner, started_at_ms = self._context.claimant, min(one.seen().now_ms for one in records)
        members = list(records)
        try:
            with self._context.store.single_statement() as tx:
                committed = commits.commit_reshapes(
                    tx, list(records.values()), runner, started_at_ms=started_at_ms
                )
        except StoreUnavailable:
            raise
        except Exception as trouble:  # noqa: BLE001 - logged by `_known`
            error = _known(trouble)
            if len(members) == 1:
                self._hindered(members[0], error)
                return
            for half in _halves(members):
                self._commit_turn({one: records[one] for one in half})
            return
        left = [record for one, record in records.items() if one.operation_id not in committed]
        reasons: dict[int, CleaveError] = {}
        if left:
            with self._context.store.single_statement() as tx:
                reasons = commits.why_skipped(tx, left, runner)
        for one, record in records.items():
            if (found := committed.get(one.operation_id)) is None:
                count_race(reasons[one.operation_id])
                self._hindered(one, reasons[one.operation_id])
                continue
            one.carried |= found.subscriptions
            self._moved(one, record, found.now_ms, epoch=found.epoch)

    def _end(self, member: _Member, record: StepRecord) -> None:
        """Commit or abort the operation in one transaction. Raises FencedOut, LostRace."""
        runner, started_at_ms = self._context.claimant, member.seen().now_ms
        with self._context.store.transaction() as tx:
            if record.leads_to is OperationState.ABORTED:
                commits.abort(tx, record, runner, started_at_ms=started_at_ms)
                committed = Committed(epoch=None, now_ms=started_at_ms)
            else:
                committed = commits.commit_one(tx, record, runner, started_at_ms=started_at_ms)
        self._moved(member, record, committed.now_ms, epoch=committed.epoch)

    def _moved(self, member: _Member, record: StepRecord, now_ms: int, *, epoch: int | None = None) -> None:
        """Apply a recorded step. The previous observation stays valid for states that can only go forward;
        otherwise the next step is chosen on a new observation.
        """
        took_ms = now_ms - member.seen().now_ms
        age_ms = member.seen().age_ms + took_ms
        moved = record.moved()
        operation = moved if epoch is None else replace(moved, epoch=epoch)
        member.operation = operation
        self._say_steps(operation, record, took_ms)
        goes_forward = operation.state in (OperationState.FENCING, OperationState.COMMITTED)
        member.observed = replace(member.seen(), now_ms=now_ms, age_ms=age_ms) if goes_forward else None
        member.lost_races, member.ready_at = 0, 0.0
        if not operation.state.is_live:
            self._put_down(member, Outcome.FINISHED)
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

    def _say_steps(self, operation: Operation, record: StepRecord, took_ms: int) -> None:
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

    def _left_out(self, members: Sequence[_Member]) -> None:
        """Handle operations that a record left unchanged: the claim has passed to another runner, or the
        topic has changed.
        """
        if not members:
            return
        runner = self._context.claimant
        with self._context.store.single_statement() as tx:
            held = steps.still_held(tx, [one.operation for one in members], runner)
        for one in members:
            if one.operation_id in held:
                moved = LostRace(
                    f"topic {one.operation.topic_name} changed; looking again", 0.0, what="operation"
                )
                count_race(moved)
                self._hindered(one, moved)
            else:
                self._hindered(one, steps.fenced_out(one.operation, runner))

    def _hindered(self, member: _Member, error: CleaveError) -> None:
        """Handle an error: observe again, abort while that has no cost, defer, or leave the operation to its
        present holder.
        """
        seen, member.observed = member.observed, None
        if member.outcome is not None:
            return
        if isinstance(error, UnmanagedLog):  # the journal may be older than its logs
            with self._context.store.single_statement() as tx:
                holds.doubt(tx, [member.operation.topic_id])
        if isinstance(error, FencedOut):
            self._lose(member, error)
        elif isinstance(error, LostRace) and member.lost_races + 1 < backoff.LOST_RACES_IN_A_ROW:
            member.lost_races += 1
            pause_seconds = backoff.pause_seconds(error.delay_seconds, member.lost_races)
            member.ready_at = self._context.clock.monotonic_seconds() + pause_seconds
        elif not member.giving_up and can_give_up(member.operation) and _is_final(error, member, seen):
            member.giving_up = str(error)
        elif isinstance(error, Terminal) and _may_finish_without(member):
            member.left_undone = str(error)
        else:
            now, operation = self._context.clock.monotonic_seconds(), member.operation
            delay_seconds = backoff.delay_seconds(
                error, operation.attempts, self._context.call_timeout_seconds, is_closed=_is_closed(operation)
            )
            late_seconds = self._context.in_hand.late_seconds(operation.operation_id, now)
            self._defer(member, str(error), max(delay_seconds, late_seconds))

    def _defer(self, member: _Member, why: str, delay_seconds: float) -> None:
        log.info(
            "operation deferred",
            **self._ids(member.operation),
            reason=why,
            delay_seconds=round(delay_seconds, 3),
        )
        try:
            with self._context.store.single_statement() as tx:
                claims.record_failure(tx, member.operation, self._context.claimant, why, delay_seconds)
        except FencedOut as error:
            self._lose(member, error)
        else:
            self._put_down(member, Outcome.DEFERRED)

    def _lose(self, member: _Member, error: CleaveError) -> None:
        log.warning("operation taken over", **self._ids(member.operation), error=str(error))
        self._put_down(member, Outcome.FENCED_OUT)

    def _leave(self, members: Sequence[_Member]) -> None:
        with self._context.store.single_statement() as tx:
            claims.release(tx, [one.operation for one in members], self._context.claimant)
        for one in members:
            self._put_down(one, Outcome.STOPPED)

    def _put_down(self, member: _Member, outcome: Outcome) -> None:
        """End the member's part in the set, so that a thread of this runner may claim the operation again."""
        member.outcome = outcome
        self._context.in_hand.put_down([member.operation_id])

    def _plane_of(self, member: _Member) -> Callable[[], DataPlane]:
        """Return a function for the operation's data plane. It is called only if a step needs the data plane,
        so that a pure commit runs anywhere.
        """
        name, topic = member.operation.data_plane, member.operation.topic_name

        def plane() -> DataPlane:
            if name not in self._context.planes:
                raise DataPlaneUnavailable(
                    f"data plane {name!r} of topic {topic} is not configured in this process; "
                    f"run the operation where it is (here: {', '.join(sorted(self._context.planes)) or 'none'})",
                    delay_seconds=backoff.LONGEST_DELAY_SECONDS,
                )
            return self._context.planes[name]

        return plane

    def _call_all(self, calls: Sequence[Callable[[], Result]], seconds: float | None = None) -> list[Result]:
        """Make the calls a few at a time, each only while the claims will outlive it. Raises the first error."""
        results: list[Result] = []
        longest_seconds = self._context.call_timeout_seconds if seconds is None else seconds
        called = partial(self._called, longest_seconds)
        for wave in _waves(calls, self._context.parallel_calls):
            self._hold_claims(longest_seconds)
            if len(wave) == 1:
                results.append(called(wave[0]))
            else:
                with ThreadPoolExecutor(len(wave)) as pool:
                    results.extend(pool.map(called, wave))
        return results

    def _called(self, longest_seconds: float, call: Callable[[], Result]) -> Result:
        """Return the call's result. A call that timed out is noted even if the error of another call is
        raised: it may be in progress for as long again.
        """
        try:
            return call()
        except DataPlaneTimeout:
            until = self._context.clock.monotonic_seconds() + longest_seconds
            self._context.in_hand.note_late_call(self._calling, until)
            raise

    def _hold_claims(self, longest_seconds: float | None = None) -> None:
        """Renew the claims if a call that starts now might outlive them.

        Raises HeldUp if a claim is lost, so that the other operations continue without it, or if the renewal
        itself took too long.
        """
        clock, call_timeout_seconds = self._context.clock, self._context.call_timeout_seconds
        longest_seconds = max(call_timeout_seconds, longest_seconds or 0.0)
        asked_at = clock.monotonic_seconds()
        if self._claimed_until - asked_at > longest_seconds:
            return
        runner = self._context.claimant
        with self._context.store.single_statement() as tx:
            held = claims.renew(
                tx, [one.operation for one in self._under_way()], runner, self._context.lease_seconds
            )
        self._claimed_until = asked_at + self._context.lease_seconds
        self._context.in_hand.take(held, self._claimed_until + call_timeout_seconds)
        lost = [one for one in self._under_way() if one.operation_id not in held]
        for one in lost:
            self._lose(one, steps.fenced_out(one.operation, runner))
        if lost:
            raise HeldUp(f"{len(lost)} claim(s) are lost; going on without them", 0.0)
        if self._claimed_until - clock.monotonic_seconds() <= longest_seconds:
            raise HeldUp("renewing the claims took as long as they last; trying again", 0.0)


def _known(trouble: Exception) -> CleaveError:
    """Return the error as a CleaveError. Any other exception would end every operation of the set."""
    if isinstance(trouble, CleaveError):
        return trouble
    # not `exc_info`: to draw all values on the stack may take longer than the claims last
    log.error("operation step raised what no step may raise", traceback=traceback.format_exc())
    return InvariantViolated(f"a step raised {type(trouble).__name__}: {trouble}; see the worker's log")


def _halves(members: Sequence[_Member]) -> tuple[Sequence[_Member], Sequence[_Member]]:
    return members[: len(members) // 2], members[len(members) // 2 :]


def _is_final(error: CleaveError, member: _Member, seen: Observed | None) -> bool:
    """Return True if another attempt is useless, or if the time of a patient operation is over."""
    is_late = seen is not None and seen.now_ms >= member.operation.deadline_at_ms
    is_patient = member.operation.kind in NOT_ABORTABLE
    return isinstance(error, Terminal) or (is_patient and is_late and isinstance(error, DataPlaneUnavailable))


def _may_finish_without(member: _Member) -> bool:
    """Return True if only the last action is refused, of an operation that is already committed or aborted.
    The journal records the action that was left out.
    """
    is_last = member.operation.state in (OperationState.COMMITTED, OperationState.ABORTING)
    return is_last and not member.left_undone


def _left_undone(member: _Member) -> dict[str, object]:
    return {"left undone": member.left_undone} if member.left_undone else {}


def _urgency(move: Move) -> tuple[int, str]:
    return (_URGENCY.index(move[0]) if move[0] in _URGENCY else len(_URGENCY)), move[0].value


def _is_closed(operation: Operation) -> bool:
    """Return True if ranges may have no log that accepts writes until the operation commits."""
    return operation.state in (OperationState.FENCING, OperationState.FENCED) and operation.kind.succeeds_logs


def _is_own_reshape(operation: Operation) -> bool:
    return operation.kind.is_reshape and not operation.is_mirrored


def _alike(records: dict[_Member, StepRecord]) -> Iterator[dict[_Member, StepRecord]]:
    """Yield groups of operations that take the same steps: some may have to apply a change of subscriptions
    before they commit.
    """
    groups: dict[tuple[Move, ...], dict[_Member, StepRecord]] = {}
    for member, record in records.items():
        groups.setdefault(record.moves, {})[member] = record
    yield from groups.values()


def _one_a_topic(members: dict[_Member, StepRecord]) -> Iterator[list[_Member]]:
    """Yield groups in which no topic occurs twice."""
    waiting = list(members)
    while waiting:
        turn = {one.operation.topic_id: one for one in reversed(waiting)}
        yield list(turn.values())
        waiting = [one for one in waiting if one is not turn[one.operation.topic_id]]


def _waves(calls: Sequence[Callable[[], Result]], size: int) -> Iterator[list[Callable[[], Result]]]:
    rest = iter(calls)
    while wave := list(islice(rest, size)):
        yield wave
