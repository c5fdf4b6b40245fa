"""Running operations in a task, where no worker is up to do it.

An operation is run until it ends or defers itself. The time is only checked between rounds, because after its fence a
range has no writable log until its operation commits.
"""

from __future__ import annotations

import time

from controller.actions.waiting import worker_is_up
from controller.bootstrap import OPERATIONS_TOGETHER, Application
from controller.services.operation_runner import run_due
from controller.services.reconciler import verify_topics
from controller.store.journal import claims
from controller.store.postgres.clock import database_now

BUDGET_SECONDS = 40.0
SOON_SECONDS = 6.0
"""What is due again within this time is waited for: longer than a runner's longest delay between attempts."""


def run_where_no_worker_is(app: Application, budget_seconds: float = BUDGET_SECONDS) -> int:
    """Verifies topics, and runs due operations of any requester until none is due soon or the time is over; how many runs.

    None at all while a worker is up. What is left stays in the journal for the next pass.
    """
    if worker_is_up(app):
        return 0
    context, runs, give_up_at = app.runner(), 0, time.monotonic() + budget_seconds
    while time.monotonic() < give_up_at and verify_topics(app.store, app.planes)[1]:
        pass
    while time.monotonic() < give_up_at:
        ran = run_due(context, limit=OPERATIONS_TOGETHER)
        if ran:
            runs += ran
            continue
        with app.store.transaction() as tx:
            due = claims.next_due(tx, call_timeout_seconds=context.call_timeout_seconds)
            wait_seconds = None if due is None else (due - database_now(tx)).total_seconds()
        if wait_seconds is None or wait_seconds > SOON_SECONDS:
            break
        time.sleep(min(max(wait_seconds, 0.05), max(give_up_at - time.monotonic(), 0.0)))
    return runs
