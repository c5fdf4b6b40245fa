"""Decides whether the split pass must be started. Reads indexes only, so that a check each minute costs
almost nothing.
"""

from __future__ import annotations

from datetime import datetime

from controller.actions.wait_for_operation import worker_is_up
from controller.domain.decision import Lane
from controller.store.decisions import evaluations
from controller.store.journal import claims
from controller.store.postgres.clock import database_now
from controller.tasks.application_of_connection import Extras, cleave_at


def split_pass_has_work(*, dsn: str, extras: Extras) -> bool:
    """Return True if the load lane has work that is due by the database's clock. Without a running worker,
    return True also for due work of the consumer lane and for due operations. Changes nothing.
    """
    with cleave_at(dsn, extras) as app:
        has_worker = worker_is_up(app)
        lanes = {Lane.LOAD} if has_worker else {Lane.LOAD, Lane.CONSUMER}
        with app.store.transaction() as tx:
            instants: list[datetime | None] = [evaluations.next_due(tx, lanes)]
            if not has_worker:
                call_timeout_seconds = app.settings.call_timeout_seconds
                instants.append(claims.next_due(tx, call_timeout_seconds=call_timeout_seconds))
            now = database_now(tx)
    return any(instant is not None and instant <= now for instant in instants)
