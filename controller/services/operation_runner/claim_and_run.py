"""Chooses the operations that a runner takes: one by its id, or several that are due; and which run together.

This module only claims operations; `operation_set` performs the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from controller.dataplane.base import DataPlane, SetWiseDataPlane
from controller.services.operation_runner.context import Outcome, RunnerContext
from controller.services.operation_runner.operation_set import OperationSet
from controller.store.journal import claims
from controller.store.journal.claims import Claim
from controller.store.shards import Shards


def run_operation(context: RunnerContext, operation_id: int) -> Outcome:
    """Claim one operation and run it as far as possible. Return how the run ended; NOT_CLAIMED if the
    operation does not exist, is final or not due, if its topic is held, if it must wait for an older reshape
    of a topic whose broker keeps the layout, if its row is locked, or if another runner or another thread of
    this runner has claimed it. An error of a step is recorded, not raised: only errors of the store are
    raised, such as StoreUnavailable.
    """
    claims_won, claimed_until = _claim(context, limit=1, operation_id=operation_id)
    if not claims_won:
        return Outcome.NOT_CLAIMED
    [outcome] = _drive(context, claims_won, claimed_until)
    return outcome


def run_due(context: RunnerContext, *, limit: int = 1, shards: Shards | None = None) -> int:
    """Claim and run up to `limit` operations that are due, in the given shards or (None) in all. Return the
    number of claims, however their runs ended; an operation that is deferred and due again within the call
    counts again. Ends early if none is due or the runner should stop.

    Reshapes that share calls run together; all other operations run one after another. Threads may call this
    function concurrently: operations on disjoint segments of one topic do not wait for each other. Only
    errors of the store are raised, such as StoreUnavailable.
    """
    count = 0
    while count < limit and not context.should_stop():
        claims_won, claimed_until = _claim(context, limit=limit - count, shards=shards)
        if not claims_won:
            break
        _drive(context, claims_won, claimed_until)
        count += len(claims_won)
    return count


def _drive(context: RunnerContext, claims_won: Sequence[Claim], claimed_until: float) -> list[Outcome]:
    """Run the claimed operations, one set of `_sets` after another, and return their outcomes in this order.
    The claims end at `claimed_until` (monotonic seconds). After an error, which is an error of the store and
    is raised, all operations are noted as not stepped: no call is in progress, and the next claim resumes
    them.
    """
    try:
        return [
            outcome
            for operation_set in _sets(claims_won)
            for outcome in OperationSet(context, operation_set, claimed_until).drive()
        ]
    except Exception:
        context.in_progress.remove([claim.operation.operation_id for claim in claims_won])
        raise


def _claim(
    context: RunnerContext,
    *,
    limit: int,
    operation_id: int | None = None,
    shards: Shards | None = None,
) -> tuple[Sequence[Claim], float]:
    """Claim up to `limit` operations that are due, in the given shards or (None) in all, or only the operation
    `operation_id`, whatever its shard; one thread of the runner at a time. Return the claims, by id and
    possibly fewer or none, and their end, as monotonic seconds counted from before the request, because the
    response may be slow.
    Past the fence only one operation is claimed unless all data planes share calls. Also notes that this
    thread steps the operations.
    """
    sharing = [name for name, plane in context.planes.items() if _shares_calls(plane)]
    with context.claiming, context.store.single_statement() as tx:
        requested_at = context.clock.monotonic_seconds()
        claims_won = claims.claim(
            tx,
            runner=context.claimant,
            in_hand=context.in_progress.operation_ids(requested_at),
            lease_seconds=context.lease_seconds,
            call_timeout_seconds=context.call_timeout_seconds,
            limit=limit,
            fenced_limit=limit if len(sharing) == len(context.planes) else 1,
            sharing_planes=sharing,
            operation_id=operation_id,
            shards=shards,
        )
        takeover_at = requested_at + context.lease_seconds + context.call_timeout_seconds
        context.in_progress.add([claim.operation.operation_id for claim in claims_won], takeover_at)
    return claims_won, requested_at + context.lease_seconds


def _shares_calls(plane: DataPlane) -> bool:
    return isinstance(plane, SetWiseDataPlane) and plane.shares_calls


def _sets(claims_won: Iterable[Claim]) -> Iterator[list[Claim]]:
    """Yield sets of claims: first one set for each data plane with the claims that share calls, then each
    other claim alone. A data plane that does not answer delays the sets after it, so the sets that share calls,
    which take the least time, come first.
    """
    together: dict[str, list[Claim]] = {}
    alone: list[list[Claim]] = []
    for claim in claims_won:
        if claim.shares_calls:
            together.setdefault(claim.operation.data_plane, []).append(claim)
        else:
            alone.append([claim])
    yield from together.values()
    yield from alone
