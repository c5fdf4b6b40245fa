"""What has to be done now and then: reconcile, collect garbage, sweep tombstones, trim logs, keep the ledger's days.

Tasks that go through the fleet are divided into shares of bounded size. A fleet that is too large for one round takes
several. The turn, a number that rises by one each round, says which shares are next, so nothing has to be remembered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from math import ceil
from typing import Any

from controller import telemetry
from controller.questions.question import read_view
from controller.questions.topics import LIST_TOPICS
from controller.services import garbage_collector, log_trimmer, reconciler, tombstone_sweeper
from controller.store import approvals, audit, backtests
from controller.store.decisions import ledger, shadow_decisions
from controller.store.journal import tombstones
from controller.store.load import history
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import BULK_STATEMENT_SECONDS
from controller.store.shards import Shards
from controller.tasks.access import Extras, cleave_at
from controller.tasks.operations_here import run_where_no_worker_is
from controller.terminal import emit, rows_table

log = telemetry.get_logger(__name__)

TOPICS_A_SHARE = 2000
SHARES_A_ROUND = 8
PAGE_TOPICS = 200
BUDGET_SECONDS = 240.0
"""A share stops after this long; its turn comes again."""
SHOWN_AT_MOST = 100
DAYS_AHEAD = 7
"""Tables of the ledger made ahead, so that a scheduler that is down for days costs nothing."""

Share = Mapping[str, int]
"""`{"share": 0, "of": 4}`: the topics whose id is 0 modulo 4."""


def fleet_shares(*, dsn: str, extras: Extras, turn: int) -> list[dict[str, int]]:
    """This round's shares of the fleet; none when there are no topics."""
    with cleave_at(dsn, extras) as app, app.store.transaction() as tx:
        [count] = read_view(tx, LIST_TOPICS.view, LIST_TOPICS.always, columns="count(*) AS topics")
    return shares_of(count["topics"], turn)


def shares_of(topic_count: int, turn: int) -> list[dict[str, int]]:
    """At most `SHARES_A_ROUND` shares; successive turns go through all of them."""
    of = ceil(topic_count / TOPICS_A_SHARE)
    count = min(of, SHARES_A_ROUND)
    return [{"share": (turn * count + number) % of, "of": of} for number in range(count)]


def reconcile_share(*, dsn: str, extras: Extras, share: Share, dry_run: bool = False) -> dict[str, Any]:
    """Compare books and data plane for the share's topics, and put right what can be."""
    findings: list[reconciler.Finding] = []
    after: int | None = 0
    with cleave_at(dsn, extras) as app:
        give_up_at = time.monotonic() + BUDGET_SECONDS
        while after is not None and time.monotonic() < give_up_at:
            found, after = reconciler.reconcile_topics(
                app.store, app.planes, limit=PAGE_TOPICS, after=after, shards=_shards(share), dry_run=dry_run
            )
            findings += found
        run = 0 if dry_run else run_where_no_worker_is(app)
    rows = [{**asdict(finding), "kind": finding.kind.value} for finding in findings[:SHOWN_AT_MOST]]
    if rows:
        emit(False, None, rows_table(rows, title=f"{len(rows)} of {len(findings)} findings"))
    return {"findings": len(findings), "shown": rows, "complete": after is None, "run_here": run}


def collect_garbage(*, dsn: str, extras: Extras, share: Share, dry_run: bool = False) -> dict[str, Any]:
    """Intend to prune what is past its retention and read to its end, in the share's topics."""
    pruned: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    after: int | None = 0
    with cleave_at(dsn, extras) as app:
        give_up_at = time.monotonic() + BUDGET_SECONDS
        while after is not None and time.monotonic() < give_up_at:
            found = garbage_collector.collect(
                app.store,
                app.planes,
                retention_minutes=app.settings.retention_minutes,
                limit=PAGE_TOPICS,
                after=after,
                shards=_shards(share),
                dry_run=dry_run,
            )
            pruned += [{"topic": topic, "segments": list(ids)} for topic, ids in found.segments.items()]
            kept += [asdict(one) for one in found.kept]
            after = found.next_after
        run = 0 if dry_run else run_where_no_worker_is(app)
    for title, rows in (("would prune" if dry_run else "prunes", pruned), ("keeps", kept)):
        if rows:
            shown = rows[:SHOWN_AT_MOST]
            emit(False, None, rows_table(shown, title=f"{title}: {len(shown)} of {len(rows)}"))
    return {
        "topics": len(pruned),
        "segments": sum(len(row["segments"]) for row in pruned),
        "kept": len(kept),
        "complete": after is None,
        "run_here": run,
    }


def sweep_tombstones(*, dsn: str, extras: Extras, dry_run: bool = False) -> dict[str, Any]:
    """Delete the logs nobody needs any more, and what nobody needs of the others; a dry run lists the logs."""
    with cleave_at(dsn, extras) as app:
        if dry_run:
            with app.store.transaction() as tx:
                rows = [asdict(one) for one in tombstones.list_open(tx, limit=SHOWN_AT_MOST)]
            emit(False, None, rows_table(rows, ("backing_topic", "reason", "attempts"), title="would delete"))
            return {"open": len(rows)}
        swept = tombstone_sweeper.sweep(app.store, app.planes)
        trimmed = log_trimmer.trim(
            app.planes,
            retention_seconds=app.settings.embedded_retention_seconds,
            budget_seconds=BUDGET_SECONDS,
        )
    log.info(
        "swept",
        logs=swept.absent[:SHOWN_AT_MOST],
        absent=len(swept.absent),
        closed=len(swept.closed),
        failed=len(swept.failed),
        trimmed_messages=trimmed,
    )
    return {
        "absent": len(swept.absent),
        "closed": len(swept.closed),
        "failed": dict(list(swept.failed.items())[:SHOWN_AT_MOST]),
        "trimmed_messages": trimmed,
    }


def keep_partitions(
    *, dsn: str, extras: Extras, keep_days: int, dry_run: bool = False
) -> dict[str, list[str]]:
    """Make the ledger's days to come, and drop those that ended more than `keep_days` days ago; the history of load
    records and what candidates said in shadow go with them, as do approvals that ended. Backtests go after `backtest_keep_days`,
    and the audit after `audit_keep_days`.
    """
    if dry_run:
        return {"made": [], "dropped": []}
    with cleave_at(dsn, extras, statement_seconds=BULK_STATEMENT_SECONDS) as app:
        with app.store.transaction() as tx:
            now = database_now(tx)
            made = ledger.ensure_partitions(tx, DAYS_AHEAD)
            oldest = now - timedelta(days=keep_days)
            dropped = ledger.drop_partitions(tx, oldest)
            forgotten = history.forget_before(tx, oldest)
            shadows = shadow_decisions.forget_before(tx, oldest)
            answers = approvals.forget_before(tx, oldest)
        with app.store.transaction() as tx:
            oldest = now - timedelta(days=app.settings.backtest_keep_days)
            runs = backtests.forget_before(tx, oldest)
        with app.store.transaction() as tx:
            audited = audit.forget_before(tx, now - timedelta(days=app.settings.audit_keep_days))
    log.info(
        "ledger kept",
        before=(now - timedelta(days=keep_days)).isoformat(),
        made=made,
        dropped=dropped,
        load_records_forgotten=forgotten,
        shadows_forgotten=shadows,
        approvals_forgotten=answers,
        backtests_forgotten=runs,
        audit_forgotten=audited,
    )
    return {"made": made, "dropped": dropped}


def _shards(share: Share) -> Shards:
    return Shards.of(share["of"], [share["share"]])
