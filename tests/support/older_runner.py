"""The runner of an older program, which recorded each step separately, so that operations stopped in `prepared` and `fenced`."""

from __future__ import annotations

from controller.domain.operation import OperationState
from controller.domain.operation_steps import Step
from controller.services.operation_runner import RunnerContext
from controller.services.operation_runner.log_steps import LogSteps, ObservedOperation
from controller.store.journal import claims, steps
from controller.store.journal.steps import StepRecord
from tests.support.waiting import wait_until


def record_alone(context: RunnerContext, operation_id: int, step: Step, leads_to: OperationState) -> None:
    """Claim the operation, perform one step on its logs, record only that step, and release the claim."""
    [claim] = wait_until(lambda: _claims(context, operation_id), message=f"operation {operation_id} is free")
    operation, observed = claim.operation, claim.observed
    acts = LogSteps(
        context.store, context.planes[operation.data_plane], lambda calls: [call() for call in calls]
    )
    acted = acts.perform(step, [ObservedOperation(operation, observed)])
    version = observed.subscription_version if step is Step.CREATE_CHILDREN else None
    record = StepRecord(operation, ((step, leads_to),), acted.details[operation_id], version)
    with context.store.transaction() as tx:
        assert steps.record(tx, [record], context.runner_id, started_at_ms=observed.now_ms)
        claims.release(tx, [record.moved()], context.runner_id)


def _claims(context: RunnerContext, operation_id: int) -> list[claims.Claim]:
    with context.store.transaction() as tx:
        return claims.claim(
            tx,
            runner=context.runner_id,
            operation_id=operation_id,
            lease_seconds=context.lease_seconds,
            call_timeout_seconds=context.call_timeout_seconds,
        )
