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
    """Claim one operation and run it as far as possible. Raises StoreUnavailable only."""
    claimed, claimed_until = _claim(context, limit=1, operation_id=operation_id)
    if not claimed:
        return Outcome.NOT_CLAIMED
    [outcome] = _drive(context, claimed, claimed_until)
    return outcome


def run_due(context: RunnerContext, *, limit: int = 1, shards: Shards | None = None) -> int:
    """Claim and run up to `limit` operations that are due. Return the number of operations that were run.

    Reshapes that share calls run together; all other operations run one after another. Threads may call this
    function concurrently: operations on disjoint segments of one topic do not wait for each other. Raises
    StoreUnavailable only.
    """
    count = 0
    while count < limit and not context.should_stop():
        claimed, claimed_until = _claim(context, limit=limit - count, shards=shards)
        if not claimed:
            break
        _drive(context, claimed, claimed_until)
        count += len(claimed)
    return count


def _drive(context: RunnerContext, claimed: Sequence[Claim], claimed_until: float) -> list[Outcome]:
    """Drive the operations set by set. If this ends with an error of the store, all of them are released: no
    call is in progress, and the next claim resumes them.
    """
    try:
        return [
            outcome
            for some in _sets(claimed)
            for outcome in OperationSet(context, some, claimed_until).drive()
        ]
    except Exception:
        context.in_hand.put_down([one.operation.operation_id for one in claimed])
        raise


def _claim(
    context: RunnerContext,
    *,
    limit: int,
    operation_id: int | None = None,
    shards: Shards | None = None,
) -> tuple[Sequence[Claim], float]:
    """Return the claims and their end, counted from before the request, because the answer may be slow."""
    sharing = [name for name, plane in context.planes.items() if _shares_calls(plane)]
    with context.claiming, context.store.single_statement() as tx:
        asked_at = context.clock.monotonic_seconds()
        claimed = claims.claim(
            tx,
            runner=context.claimant,
            in_hand=context.in_hand.held(asked_at),
            lease_seconds=context.lease_seconds,
            call_timeout_seconds=context.call_timeout_seconds,
            limit=limit,
            fenced_limit=limit if len(sharing) == len(context.planes) else 1,
            sharing_planes=sharing,
            operation_id=operation_id,
            shards=shards,
        )
        takeover_at = asked_at + context.lease_seconds + context.call_timeout_seconds
        context.in_hand.take([one.operation.operation_id for one in claimed], takeover_at)
    return claimed, asked_at + context.lease_seconds


def _shares_calls(plane: DataPlane) -> bool:
    return isinstance(plane, SetWiseDataPlane) and plane.shares_calls


def _sets(claimed: Iterable[Claim]) -> Iterator[list[Claim]]:
    """Yield sets of claims: first those that share calls, which end soon, since a data plane that does not
    answer delays the sets after it.
    """
    together: dict[str, list[Claim]] = {}
    alone: list[list[Claim]] = []
    for one in claimed:
        if one.shares_calls:
            together.setdefault(one.operation.data_plane, []).append(one)
        else:
            alone.append([one])
    yield from together.values()
    yield from alone
