"""Runs operations in a task if no worker is running.

An operation runs until it ends or defers itself. The time is checked only between rounds, because after its
fence a range has no writable log until the operation commits.
"""

from __future__ import annotations

import time

from controller.actions.wait_for_operation import worker_is_up
from controller.bootstrap import OPERATIONS_TOGETHER, Application
from controller.services.operation_runner import run_due
from controller.services.reconciler import verify_topics
from controller.store.journal import claims
from controller.store.postgres.clock import database_now

BUDGET_SECONDS = 40.0
"""Seconds after which no operation begins."""
SOON_SECONDS = 6.0
"""Operations that are due again within this time are waited for. It is longer than a runner's longest delay
between attempts.
"""


def run_without_worker(app: Application) -> int:
    """Verify unverified topics, then run due operations of any requester until none is due within
    `SOON_SECONDS` or `BUDGET_SECONDS` are over. Sleeps until operations that are due soon. Return the number
    of runs.

    Does nothing and returns 0 while a worker is running. The remaining operations wait for the next pass. An
    operation that has begun runs to its end or deferral.
    """
    if worker_is_up(app):
        return 0
    context, runs, give_up_at = app.runner(), 0, time.monotonic() + BUDGET_SECONDS
    tried: set[int] = set()
    while time.monotonic() < give_up_at and verify_topics(app.store, app.planes, tried=tried)[0]:
        pass
    while time.monotonic() < give_up_at:
        run_count = run_due(context, limit=OPERATIONS_TOGETHER)
        if run_count:
            runs += run_count
            continue
        with app.store.transaction() as tx:
            due_at = claims.next_due(tx, call_timeout_seconds=context.call_timeout_seconds)
            wait_seconds = None if due_at is None else (due_at - database_now(tx)).total_seconds()
        if wait_seconds is None or wait_seconds > SOON_SECONDS:
            break
        time.sleep(min(max(wait_seconds, 0.05), max(give_up_at - time.monotonic(), 0.0)))
    return runs
