"""The wait for an intended operation: a running worker runs the operation; without a worker, this process
runs it.

The intent is durable before the wait starts. If this process dies, the next runner continues the operation.
"""

from __future__ import annotations

import time
from functools import partial

from controller.bootstrap import Application
from controller.domain.errors import Retryable
from controller.domain.operation import Operation
from controller.store import leases
from controller.store.journal import operations


def worker_is_up(app: Application) -> bool:
    """Return True if any worker holds a live lease."""
    with app.store.transaction() as tx:
        return bool(leases.live_leases(tx, "worker/"))


def run_to_its_end(app: Application, operation_id: int, timeout_seconds: float) -> Operation:
    """Wait until the operation is done or aborted, and return it; the caller checks which. The worker runs the operation
    if any worker holds a live lease when the wait starts, otherwise this process does. Raises OperationNotFound,
    Retryable if the operation takes longer than `timeout_seconds`, and StoreUnavailable, with the operation's id in the
    message, if PostgreSQL is unavailable when the time is over (StoreRefused at once).
    """
    from controller.services.operation_wait import through_outages, wait_for

    ends_at = time.monotonic() + timeout_seconds
    has_worker = through_outages(partial(worker_is_up, app), operation_id, timeout_seconds)
    wait = partial(wait_for, app.store) if has_worker else partial(_run_in_this_process, app)
    return wait(operation_id, max(0.0, ends_at - time.monotonic()))


def _run_in_this_process(app: Application, operation_id: int, timeout_seconds: float) -> Operation:
    """Run the operation in this thread, repeatedly while it is deferred or cannot be claimed (another runner has its claim, its topic is
    held), until it has ended, done or aborted, and return it. The time is checked after each attempt: raises Retryable if
    `timeout_seconds` are over and the operation has not ended. Raises OperationNotFound, and StoreUnavailable as
    `run_to_its_end` does.
    """
    from controller.services.operation_runner import run_operation
    from controller.services.operation_wait import through_outages

    context, deadline = app.runner(), time.monotonic() + timeout_seconds

    def attempt() -> Operation:
        run_operation(context, operation_id)
        return app.store.in_transaction(operations.get_operation, operation_id)

    while True:
        operation = through_outages(attempt, operation_id, deadline - time.monotonic())
        if not operation.state.is_live:
            return operation
        if time.monotonic() >= deadline:
            raise Retryable(
                f"operation {operation_id} ({operation.kind} of {operation.topic_name}) is {operation.state} after "
                f"{round(timeout_seconds, 1):g} s; the next runner will continue it"
            )
        time.sleep(0.1)
