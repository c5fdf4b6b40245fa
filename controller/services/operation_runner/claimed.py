"""One claimed operation under way: choose the step, have it done, record it, until final or out of luck.

`due` claims it and says whether it runs alone, as here, or beside others (`together`).

A claim is a term and an expiry by the database's clock. A data-plane call is made only while the claim will
outlive it, and a takeover waits for the expiry plus the longest call, so two runners never act at once; what a
stale one still tries to write is refused (FencedOut). Errors before the fence lead to an abort, afterwards to
another attempt: never to a way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import TypeVar

from sqlalchemy import Connection

from controller import telemetry
from controller.clock import to_datetime
from controller.dataplane.base import DataPlane
from controller.domain.errors import (
    CleaveError,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    FencedOut,
    LostRace,
    Retryable,
    StoreUnavailable,
    Terminal,
)
from controller.domain.operation import Observed, Operation, OperationState, Step, is_abortable, next_step
from controller.services.operation_runner.acts import Acts
from controller.services.operation_runner.broker_acts import BrokerActs
from controller.services.operation_runner.context import Outcome, RunnerContext
from controller.store.journal import claims as operations
from controller.store.journal import commits
from controller.store.mirrors import commits as mirror_commits

log = telemetry.get_logger(__name__)

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0
"""Attempts back off by doubling up to here: past the fence a range has no writable log until the next one."""
LOST_RACES_IN_A_ROW = 8

Result = TypeVar("Result")


class Run:
    """One claimed operation, from the last recorded step on."""

    def __init__(self, context: RunnerContext, operation: Operation, claimed_until: float) -> None:
        self._context = context
        self._operation = operation
        self._claimed_until = claimed_until
        self._giving_up = ""
        self._seen: Observed | None = None  # what the last recorded step saw on its way

    def drive(self) -> Outcome:
        """Step until final. Raises StoreUnavailable: nothing can be recorded then, the row says where we are."""
        lost_races = 0
        while self._operation.state.is_live:
            if self._context.should_stop():
                return self._leave()
            try:
                if not self._advance():
                    return self._defer("waits for older operations of the topic", FIRST_DELAY_SECONDS)
                lost_races = 0
            except (FencedOut, StoreUnavailable) as error:
                return self._lost_hold(error)
            except LostRace as error:
                lost_races += 1
                if lost_races == LOST_RACES_IN_A_ROW:
                    return self.fail(error)
            except CleaveError as error:
                if not self._gives_up(error):
                    return self.fail(error)
        return self._finish()

    def _advance(self) -> bool:
        """Do and record one step; False when there is nothing to do yet."""
        observed = self._observe()
        if self._giving_up:
            observed = replace(observed, abort_requested=True)
        step, leads_to = next_step(self._operation, observed)
        if step is Step.WAIT:
            return False
        kind = BrokerActs if self._operation.is_on_broker else Acts
        acts = kind(self._context.store, self._plane, self._operation, self._call_all)
        detail = {"reason": self._giving_up} if step is Step.ABORT and self._giving_up else acts.perform(step)
        self._context.checkpoint(f"{step}:before")
        self._operation, self._seen = self._record(step, leads_to, observed, detail)
        self._context.checkpoint(f"{step}:after")
        return True

    def _observe(self) -> Observed:
        """What the last step saw while it was recorded, once; after anything else a new look."""
        seen, self._seen = self._seen, None
        if seen is not None:
            return seen
        with self._context.store.single_statement() as tx:
            return operations.observe(tx, self._operation)

    def _record(
        self, step: Step, leads_to: OperationState, observed: Observed, detail: Mapping[str, object]
    ) -> tuple[Operation, Observed | None]:
        """Commit the step under the claim term. Raises FencedOut, LostRace, StoreUnavailable."""
        runner, started_at = self._context.runner_id, to_datetime(observed.now_ms)
        notes_subscriptions = step in (Step.CREATE_CHILDREN, Step.SYNC_SUBSCRIPTIONS)
        if step in (Step.COMMIT, Step.FINISH_ABORT):
            with self._context.store.transaction() as tx:
                return self._end(tx, step, started_at, detail), None
        with self._context.store.single_statement() as tx:
            return operations.record_step(
                tx,
                self._operation,
                runner,
                step,
                leads_to,
                started_at=started_at,
                detail=detail,
                subscription_version=observed.subscription_version if notes_subscriptions else None,
            )

    def _end(
        self, tx: Connection, step: Step, started_at: datetime, detail: Mapping[str, object]
    ) -> Operation:
        """The transaction in which the operation becomes true, or is given up."""
        operation, runner = self._operation, self._context.runner_id
        if operation.is_on_broker and step is Step.COMMIT:
            return mirror_commits.commit(tx, operation, runner, started_at=started_at, detail=detail)
        if step is Step.COMMIT:
            return commits.commit(tx, operation, runner, started_at=started_at)
        abort = mirror_commits.abort if operation.is_on_broker else commits.abort
        return abort(tx, operation, runner, started_at=started_at)

    def _plane(self) -> DataPlane:
        name = self._operation.data_plane
        if name not in self._context.planes:
            raise DataPlaneUnavailable(
                f"data plane {name!r} of topic {self._operation.topic_name} is not configured in this process; "
                f"run the operation where it is (here: {', '.join(sorted(self._context.planes)) or 'none'})",
                delay_seconds=LONGEST_DELAY_SECONDS,
            )
        return self._context.planes[name]

    def _call_all(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Make the calls a few at a time, each only while the claim will outlive it; the first error is raised."""
        results: list[Result] = []
        for wave in _waves(calls, self._context.parallel_calls):
            self._hold_claim()
            if len(wave) == 1:
                results.append(wave[0]())
            else:
                with ThreadPoolExecutor(len(wave)) as pool:
                    results.extend(pool.map(lambda call: call(), wave))
        return results

    def _hold_claim(self) -> None:
        """Renew the claim when a call started now might outlive it. Raises FencedOut."""
        now = self._context.clock.monotonic_seconds()
        if self._claimed_until - now <= self._context.call_timeout_seconds:
            with self._context.store.single_statement() as tx:
                operations.renew(tx, self._operation, self._context.runner_id, self._context.lease_seconds)
            self._claimed_until = now + self._context.lease_seconds

    def _gives_up(self, error: CleaveError) -> bool:
        """Whether to abort for this error: it will not go away, and the fence is not announced."""
        if self._giving_up or not isinstance(error, Terminal) or not is_abortable(self._operation):
            return False
        self._giving_up = str(error)
        return True

    def fail(self, error: CleaveError) -> Outcome:
        """Note the error and come back: later each time, and at once late when only a person can help."""
        backoff_seconds = FIRST_DELAY_SECONDS * 2 ** min(self._operation.attempts, 10)
        asked_seconds = error.delay_seconds if isinstance(error, Retryable) else LONGEST_DELAY_SECONDS
        delay_seconds = min(max(backoff_seconds, asked_seconds), LONGEST_DELAY_SECONDS)
        if isinstance(
            error, DataPlaneTimeout
        ):  # the call may be under way still; nobody else may call meanwhile
            delay_seconds = max(delay_seconds, self._context.call_timeout_seconds)
        return self._defer(str(error), delay_seconds)

    def _defer(self, why: str, delay_seconds: float) -> Outcome:
        log.info("operation deferred", operation_id=self._operation.operation_id, reason=why)
        try:
            with self._context.store.single_statement() as tx:
                operations.record_failure(tx, self._operation, self._context.runner_id, why, delay_seconds)
        except FencedOut as error:
            return self._lost_hold(error)
        return Outcome.DEFERRED

    def _leave(self) -> Outcome:
        with self._context.store.single_statement() as tx:
            operations.release(tx, self._operation, self._context.runner_id)
        return Outcome.STOPPED

    def _lost_hold(self, error: CleaveError) -> Outcome:
        if isinstance(error, StoreUnavailable):
            raise error
        log.warning("operation taken over", operation_id=self._operation.operation_id, error=str(error))
        return Outcome.FENCED_OUT

    def _finish(self) -> Outcome:
        operation = self._operation
        telemetry.OPERATIONS.labels(operation.kind, operation.origin, operation.state).inc()
        log.info(
            "operation ended", operation_id=operation.operation_id, kind=operation.kind, state=operation.state
        )
        return Outcome.FINISHED


def _waves(calls: Sequence[Callable[[], Result]], size: int) -> Iterator[list[Callable[[], Result]]]:
    rest = iter(calls)
    while wave := list(islice(rest, size)):
        yield wave
