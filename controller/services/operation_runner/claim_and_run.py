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
    """Claim one operation and perform its steps until the operation has finished, is deferred or has lost its claim,
    or the runner stops. Return how the run ended.

    NOT_CLAIMED means that nothing was done: the operation does not exist, is final or not due; its topic is held; its
    kind is unknown to this version; it must wait for an older reshape of a topic whose broker keeps the layout; its
    row is locked; or another runner or another thread of this runner has claimed it. An error of a step is recorded
    in the journal, not raised. Only errors of the store are raised, such as StoreUnavailable; a later claim then
    continues from the last recorded step.
    """
    claims_won, claimed_until = _claim(context, limit=1, operation_id=operation_id)
    if not claims_won:
        return Outcome.NOT_CLAIMED
    [outcome] = _drive(context, claims_won, claimed_until)
    return outcome


def run_due(context: RunnerContext, *, limit: int = 1, shards: Shards | None = None) -> int:
    """Claim and run up to `limit` operations that are due, in the given shards or (None) in all. Return the number of
    claims, however their runs ended; 0 if no operation is due. An operation that is deferred and due again within the
    call counts again. The call ends early if no operation is due or the runner should stop.

    Reshapes whose data plane shares calls run together; all other operations run one after another. Threads may call
    this function concurrently: operations on disjoint segments of one topic do not wait for each other. An error of a
    step is recorded in the journal, not raised. Only errors of the store are raised, such as StoreUnavailable; later
    claims then continue the operations that were not finished.
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
    """Run the claimed operations, one set of `_sets` after another, and return their outcomes in the order of the
    sets, which may differ from the order of `claims_won`. The claims end at `claimed_until` (monotonic seconds).

    Any error, normally an error of the store such as StoreUnavailable, is raised, and the operations of all sets are
    removed from `context.in_progress`. No call is in progress then, so the next claim of this runner resumes the
    operations.
    """
    try:
        return [
            outcome
            for operation_set in _sets(claims_won)
            for outcome in OperationSet(context, operation_set, claimed_until).drive()
        ]
    except Exception:
        context.in_progress.remove([claim.operation for claim in claims_won])
        raise


def _claim(
    context: RunnerContext,
    *,
    limit: int,
    operation_id: int | None = None,
    shards: Shards | None = None,
) -> tuple[Sequence[Claim], float]:
    """Claim up to `limit` operations that are due, in the given shards or (None) in all. With `operation_id`, claim
    only this operation, if it is due, whatever its shard. Only one thread of the runner claims at a time. Return the
    claims by operation id, possibly fewer than `limit` or none, and the end of the claims in monotonic seconds. The
    end is counted from before the request, because the response may be slow.

    Of the operations past the fence (states FENCING and FENCED), at most one is claimed, unless all data planes share
    calls. The claimed operations are added to `context.in_progress`, so that no other thread of this runner claims
    them. Raises the errors of `Store.single_statement`, such as StoreUnavailable.
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
        context.in_progress.add([claim.operation for claim in claims_won], takeover_at)
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
