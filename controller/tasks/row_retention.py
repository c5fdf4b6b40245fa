"""Decides how many days rows are kept: decisions, load records, aggregation runs, silent sources, shadow decisions,
ended approvals, backtests and the audit.

The days of the decision log, of load records, runs, sources, shadow decisions and approvals are a parameter of the
DAG `cleave_maintenance`; the others are settings. The database keeps the last 30 days of the decision log in any
case (`cleave.drop_decision_partitions` in sql/schema/52_decisions.sql), and the load of a sealed segment for an hour
(`cleave.forget_sealed_loads` in sql/schema/42_load_intake.sql).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from controller import telemetry
from controller.bootstrap import Application
from controller.domain.whole_numbers import whole
from controller.postgres.session_settings import BULK_STATEMENT_SECONDS
from controller.store import approvals, audit, backtests
from controller.store.decisions import decision_log, shadow_decisions
from controller.store.load import load_deletion
from controller.store.postgres.clock import database_now
from controller.tasks.application_of_connection import Extras, cleave_at

log = telemetry.get_logger(__name__)

MOST_KEEP_DAYS = 36_500
"""Largest number of days that the decision log is kept: a century, so that the oldest day is a date."""
DAYS_AHEAD = 7
"""Days for which partitions of the decision log are created ahead, so that they exist even if the scheduler
is down for days.
"""


def keep_partitions(
    *, dsn: str, extras: Extras, keep_days: int, dry_run: bool = False
) -> dict[str, list[str]]:
    """Create the partitions of the decision log for the coming `DAYS_AHEAD` days, and drop those that ended
    more than `keep_days` days ago, with the history of load records, shadow decisions and ended approvals, in
    one transaction. Then delete aggregation runs and silent sources of that age, the load of segments that were
    sealed an hour ago, backtests after `backtest_keep_days`, and the audit after `audit_keep_days`. Log the numbers,
    and return the names of the partitions. A dry run does nothing, and returns no names. Raises InvalidInput unless
    `keep_days` is a whole number from 1 to `MOST_KEEP_DAYS`.
    """
    whole(keep_days, "keep_days", 1, MOST_KEEP_DAYS)
    if dry_run:
        return {"made": [], "dropped": []}
    with cleave_at(dsn, extras, statement_seconds=BULK_STATEMENT_SECONDS) as app:
        with app.store.transaction() as tx:
            now = database_now(tx)
            created = decision_log.ensure_partitions(tx, DAYS_AHEAD)
            oldest = now - timedelta(days=keep_days)
            dropped = decision_log.drop_partitions(tx, oldest)
            load_record_count = load_deletion.forget_history_before(tx, oldest)
            shadow_count = shadow_decisions.forget_before(tx, oldest)
            approval_count = approvals.forget_before(tx, oldest)
        if dropped:
            # A transaction of its own, because the one that drops tables keeps every evaluation waiting.
            app.store.in_transaction(decision_log.repeat_lost_refusals)
        load_counts = _forget_load(app, oldest)
        with app.store.transaction() as tx:
            oldest = now - timedelta(days=app.settings.backtest_keep_days)
            backtest_count = backtests.forget_before(tx, oldest)
        audit_count = app.store.in_transaction(
            audit.forget_before, now - timedelta(days=app.settings.audit_keep_days)
        )
    log.info(
        "partitions of the decision log kept",
        before=(now - timedelta(days=keep_days)).isoformat(),
        made=created,
        dropped=dropped,
        load_records_forgotten=load_record_count,
        **load_counts,
        shadows_forgotten=shadow_count,
        approvals_forgotten=approval_count,
        backtests_forgotten=backtest_count,
        audit_forgotten=audit_count,
    )
    return {"made": created, "dropped": dropped}


def _forget_load(app: Application, oldest: datetime) -> dict[str, int]:
    """Delete aggregation runs and silent sources from before `oldest`, and the load of segments that were sealed an
    hour ago. Return the numbers of deleted rows, by the names of their log fields.
    """
    # One transaction each, because a merge of load holds the lock of the runs while it waits for load records.
    run_count = app.store.in_transaction(load_deletion.forget_runs_before, oldest)
    sealed_count = app.store.in_transaction(load_deletion.forget_sealed)
    return {"load_runs_forgotten": run_count, "sealed_loads_forgotten": sealed_count}
