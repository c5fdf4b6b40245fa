"""Which operations a runner takes, and in whose company: one by its id, or some that are due.

A claim is the only thing that is done here: steps are `claimed`'s for one operation, `together`'s for several, or for
one whose data plane takes calls for all its logs.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.dataplane.base import SetWiseDataPlane
from controller.domain.errors import DataPlaneUnavailable
from controller.domain.operation import Operation
from controller.services.operation_runner.claimed import Run
from controller.services.operation_runner.context import Outcome, RunnerContext
from controller.services.operation_runner.together import Together, is_ordinary, set_wise
from controller.store.journal import claims as operations
from controller.store.journal import reshapes
from controller.store.journal.reshapes import Claimed
from controller.store.shards import Shards


def run_operation(context: RunnerContext, operation_id: int) -> Outcome:
    """Claim one operation and run it as far as it goes. Raises StoreUnavailable only."""
    run = _claim(context, operation_id=operation_id)
    return Outcome.NOT_CLAIMED if run is None else run.drive()


def run_due(context: RunnerContext, *, limit: int = 1, shards: Shards | None = None) -> int:
    """Claim and run up to `limit` operations that are due; returns how many were run.

    Fresh reshapes run side by side where they can share calls, whatever else is due one after the other. Threads may
    call it side by side: operations on disjoint segments of one topic do not wait for each other. Raises
    StoreUnavailable only.
    """
    count = 0
    planes = {
        name: found.shares_calls
        for name, plane in context.planes.items()
        if (found := set_wise(plane)) is not None
    }
    while count < limit and not context.should_stop():
        with context.claiming, context.store.single_statement() as tx:
            asked_at = context.clock.monotonic_seconds()  # the claim counts from here: the answer may be slow
            claimed = reshapes.claim(
                tx,
                runner=context.runner_id,
                lease_seconds=context.lease_seconds,
                call_timeout_seconds=context.call_timeout_seconds,
                limit=limit - count,
                planes_together=[name for name, shares_calls in planes.items() if shares_calls],
                planes_alone=[name for name, shares_calls in planes.items() if not shares_calls],
                shards=shards,
            )
        if not claimed:
            break
        _run_claimed(context, claimed, asked_at + context.lease_seconds)
        count += len(claimed)
    return count


def _run_claimed(context: RunnerContext, claimed: Sequence[Claimed], claimed_until: float) -> None:
    """Those that share calls first, which is soon done; a plane that does not answer holds up what comes behind it."""
    alone: list[Operation] = []
    groups: dict[object, tuple[SetWiseDataPlane, list[Claimed]]] = {}
    for one in claimed:
        plane = set_wise(context.planes[one.operation.data_plane]) if is_ordinary(one) else None
        if plane is None:
            alone.append(one.operation)
            continue
        fellows = plane.name if plane.shares_calls else one.operation.operation_id
        groups.setdefault(fellows, (plane, []))[1].append(one)
    for plane, members in groups.values():
        if plane.shares_calls:
            _run_together(context, plane, members, claimed_until)
    for operation in alone:
        Run(context, operation, claimed_until).drive()
    for plane, members in groups.values():
        if not plane.shares_calls:
            _run_together(context, plane, members, claimed_until)


def _run_together(
    context: RunnerContext, plane: SetWiseDataPlane, members: Sequence[Claimed], claimed_until: float
) -> None:
    """Side by side; those that are left go on alone, later where the plane was away."""
    together = Together(context, plane, members, claimed_until)
    error = together.drive()
    for operation in together.left():
        run = Run(context, operation, claimed_until)
        if isinstance(error, DataPlaneUnavailable):
            run.fail(error)  # what timed out may be under way still
        else:
            run.drive()


def _claim(context: RunnerContext, *, operation_id: int) -> Run | None:
    asked_at = context.clock.monotonic_seconds()
    with context.store.single_statement() as tx:
        claimed = operations.claim(
            tx,
            runner=context.runner_id,
            lease_seconds=context.lease_seconds,
            call_timeout_seconds=context.call_timeout_seconds,
            operation_id=operation_id,
        )
    return Run(context, claimed[0], asked_at + context.lease_seconds) if claimed else None
