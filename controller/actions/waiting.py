"""The wait for an intended operation: a worker that is up runs the operation, otherwise this process does.

An intent is durable before the wait starts. A process that dies here leaves work for the next runner, never half an
operation.
"""

from __future__ import annotations

import getpass
import os
import time

from controller.actions.responses import aborted
from controller.bootstrap import Application
from controller.domain.errors import Retryable
from controller.domain.operation import Operation, OperationState
from controller.store import leases
from controller.store.journal import operations
from controller.store.journal.request_keys import Intent


def worker_is_up(app: Application) -> bool:
    """Whether any worker holds a live lease."""
    with app.store.transaction() as tx:
        return bool(leases.live_leases(tx, "worker/"))


def see_through(app: Application, intent: Intent, timeout_seconds: float = 60.0) -> Operation:
    """The operation once it is final. Raises Retryable if it takes longer, Terminal if it was aborted."""
    return demand_done(run_to_its_end(app, intent.operation.operation_id, timeout_seconds))


def demand_done(operation: Operation) -> Operation:
    """The operation, which has ended. Raises Terminal if it was aborted."""
    if operation.state is OperationState.ABORTED:
        raise aborted(operation.operation_id, operation.kind, operation.topic_name, operation.last_error)
    return operation


def run_to_its_end(app: Application, operation_id: int, timeout_seconds: float) -> Operation:
    """The operation once it is done or aborted. Raises Retryable if it takes longer."""
    from controller.services.operation_wait import wait_for

    if worker_is_up(app):
        return wait_for(app.store, operation_id, timeout_seconds)
    return _run_here(app, operation_id, timeout_seconds)


def _run_here(app: Application, operation_id: int, timeout_seconds: float) -> Operation:
    from controller.services.operation_runner import run_operation

    context, deadline = app.runner(), time.monotonic() + timeout_seconds
    while True:
        run_operation(context, operation_id)
        with app.store.transaction() as tx:
            operation = operations.get_operation(tx, operation_id)
        if not operation.state.is_live:
            return operation
        if time.monotonic() >= deadline:
            raise Retryable(
                f"operation {operation_id} ({operation.kind} of {operation.topic_name}) is {operation.state} after "
                f"{timeout_seconds:g} s; it stays in the journal for the next runner"
            )
        time.sleep(0.1)


def user_name() -> str:
    """Return the name of the person who runs this process: CLEAVE_ACTOR if set, for shells that share a login, else the user's name."""
    try:
        return os.environ.get("CLEAVE_ACTOR", "").strip() or getpass.getuser()
    except (KeyError, OSError):  # a container's user need not be in any list
        return f"uid {os.getuid()}"
