"""Periodic maintenance of topics: reconcile, collect garbage, process deletion entries and trim logs.

Tasks that cover the fleet are divided into shares of bounded size. A round processes a bounded number of shares,
which are drawn at random from those of a large fleet, so no state is stored.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from controller import telemetry
from controller.bootstrap import Application
from controller.command_output import emit, rows_table
from controller.questions.question import read_view
from controller.questions.topics import LIST_TOPICS
from controller.services import deletion_sweeper, garbage_collector, log_trimmer, reconciler
from controller.store.journal import deletion_entries
from controller.store.shards import Shards
from controller.tasks import run_operations
from controller.tasks.application_of_connection import Extras, cleave_at
from controller.tasks.run_operations import run_without_worker

log = telemetry.get_logger(__name__)

TOPICS_A_SHARE = 2000
"""Number of topics of one share, on average."""
SHARES_A_ROUND = 8
"""Maximum number of shares of one round."""
PAGE_TOPICS = 200
"""Number of topics that are reconciled or collected together."""
BUDGET_SECONDS = 240.0
"""Seconds after which a share stops. Each call for a share begins at another, random topic, so that repeated calls
reach all of its topics, even if none has the time for all.
"""
SHOWN_AT_MOST = 100
"""Maximum number of rows of a logged table, and of a list in a result."""

Share = Mapping[str, int]
"""Topics whose id modulo `of` is `share`: `{"share": 0, "of": 4}`."""


def fleet_shares(*, dsn: str, extras: Extras) -> list[dict[str, int]]:
    """Return this round's shares of the fleet, by the number of topics that are not deleted; none if there
    are no topics. Reads only.
    """
    with cleave_at(dsn, extras) as app, app.store.transaction() as tx:
        [count] = read_view(tx, LIST_TOPICS.view, LIST_TOPICS.always, columns="count(*) AS topics")
    return shares_of(count["topics"])


def shares_of(topic_count: int) -> list[dict[str, int]]:
    """Return at most `SHARES_A_ROUND` shares, each with about `TOPICS_A_SHARE` topics; no share without
    topics. If there are more shares, they are drawn at random: Airflow skips the rounds that are due during a
    slow round, so shares that were chosen by the time could be the same ones in each round.
    """
    share_count = math.ceil(topic_count / TOPICS_A_SHARE)
    drawn = secrets.SystemRandom().sample(range(share_count), min(share_count, SHARES_A_ROUND))
    return [{"share": share, "of": share_count} for share in drawn]


def round_seconds(shares_at_once: int) -> float:
    """Return the seconds that the tasks of a round take by their budgets, with so many shares at the same time: the
    shares are reconciled, then collected, and the deletion entries are processed last. Each task also runs operations.
    """
    tasks_in_turn = 2 * math.ceil(SHARES_A_ROUND / shares_at_once) + 1
    return tasks_in_turn * (BUDGET_SECONDS + run_operations.BUDGET_SECONDS)


def reconcile_share(*, dsn: str, extras: Extras, share: Share, dry_run: bool = False) -> dict[str, Any]:
    """Compare metadata and data plane for the share's topics (those whose id modulo `of` is `share`) for up
    to `BUDGET_SECONDS` (checked after each `PAGE_TOPICS` topics), and repair the differences; a dry run only
    lists them. If no worker is running, then run due operations. Log and return the first `SHOWN_AT_MOST`
    findings, and return the counts; `complete` is False if the time was over before all topics were compared.
    Each call begins at a random topic, unless the topics fit into one page.
    """
    findings: dict[reconciler.Finding, None] = {}  # each once, even if its topic is compared twice
    with cleave_at(dsn, extras) as app:

        def reconcile_page(after: int) -> int | None:
            page_findings, next_after = reconciler.reconcile_topics(
                app.store, app.planes, limit=PAGE_TOPICS, after=after, shards=_shards(share), dry_run=dry_run
            )
            findings.update(dict.fromkeys(page_findings))
            return next_after

        is_complete = _visit_pages(app, share, reconcile_page)
        run_count = 0 if dry_run else run_without_worker(app)
    rows = [{**asdict(finding), "kind": finding.kind.value} for finding in list(findings)[:SHOWN_AT_MOST]]
    if rows:
        emit(False, None, rows_table(rows, title=f"{len(rows)} of {len(findings)} findings"))
    return {"findings": len(findings), "shown": rows, "complete": is_complete, "run_here": run_count}


def collect_garbage(*, dsn: str, extras: Extras, share: Share, dry_run: bool = False) -> dict[str, Any]:
    """Intend to prune the segments of the share's topics (those whose id modulo `of` is `share`) that have
    passed their retention and are read to their end, for up to `BUDGET_SECONDS` (checked after each
    `PAGE_TOPICS` topics); a dry run only lists them. If no worker is running, then run due operations. Log
    the first `SHOWN_AT_MOST` topics with segments to prune and the first `SHOWN_AT_MOST` segments that are
    kept, with the reasons, and return the counts; `complete` is False if the time was over before all topics
    were examined. Each call begins at a random topic, unless the topics fit into one page.
    """
    segments: dict[str, tuple[int, ...]] = {}
    kept: dict[garbage_collector.KeptSegment, None] = {}  # each once, even if its topic is examined twice
    with cleave_at(dsn, extras) as app:

        def collect_page(after: int) -> int | None:
            collected = garbage_collector.collect(
                app.store,
                app.planes,
                retention_minutes=app.settings.retention_minutes,
                limit=PAGE_TOPICS,
                after=after,
                shards=_shards(share),
                dry_run=dry_run,
            )
            segments.update(collected.segments)
            kept.update(dict.fromkeys(collected.kept))
            return collected.next_after

        is_complete = _visit_pages(app, share, collect_page)
        run_count = 0 if dry_run else run_without_worker(app)
    pruned = [{"topic": topic, "segments": list(ids)} for topic, ids in segments.items()]
    kept_segments = [asdict(segment) for segment in kept]
    for title, rows in (("would prune" if dry_run else "prunes", pruned), ("keeps", kept_segments)):
        if rows:
            shown_rows = rows[:SHOWN_AT_MOST]
            emit(False, None, rows_table(shown_rows, title=f"{title}: {len(shown_rows)} of {len(rows)}"))
    return {
        "topics": len(pruned),
        "segments": sum(map(len, segments.values())),
        "kept": len(kept_segments),
        "complete": is_complete,
        "run_here": run_count,
    }


def sweep_deletion_entries(*, dsn: str, extras: Extras, dry_run: bool = False) -> dict[str, Any]:
    """Delete the logs of deletion entries that are due, up to the limit of `deletion_sweeper.sweep`, and
    then, for up to `BUDGET_SECONDS`, the messages of logs that all subscriptions have read and that are older
    than `embedded_retention_seconds`. Log and return the numbers of logs that are gone (`absent`), of entries that
    were closed and of deleted messages, and the errors by log (`failed`, the first `SHOWN_AT_MOST`). An error of one
    log is not raised. A dry run only lists and counts the first `SHOWN_AT_MOST` open deletion entries,
    due or not.
    """
    with cleave_at(dsn, extras) as app:
        if dry_run:
            entries = app.store.in_transaction(deletion_entries.list_open, limit=SHOWN_AT_MOST)
            rows = [asdict(entry) for entry in entries]
            emit(False, None, rows_table(rows, ("backing_topic", "reason", "attempts"), title="would delete"))
            return {"open": len(rows)}
        report = deletion_sweeper.sweep(app.store, app.planes)
        trimmed_messages = log_trimmer.trim(
            app.planes,
            retention_seconds=app.settings.embedded_retention_seconds,
            budget_seconds=BUDGET_SECONDS,
        )
    log.info(
        "swept",
        logs=report.absent[:SHOWN_AT_MOST],
        absent=len(report.absent),
        closed=len(report.closed),
        failed=len(report.failed),
        trimmed_messages=trimmed_messages,
    )
    return {
        "absent": len(report.absent),
        "closed": len(report.closed),
        "failed": dict(list(report.failed.items())[:SHOWN_AT_MOST]),
        "trimmed_messages": trimmed_messages,
    }


def _visit_pages(app: Application, share: Share, visit: Callable[[int], int | None]) -> bool:
    """Call `visit` with the topic id after which each page of the share begins, for up to `BUDGET_SECONDS`.
    `visit` returns the id after which to continue, or None after the last topic. Return True if all topics were
    visited, False if the time was over before.

    Begins after a random id up to the highest of the fleet, continues at the lowest id after the last topic,
    and stops there; the last page may repeat topics of the first. If the ids of the share fit into one page,
    begins at the lowest.
    """
    with app.store.transaction() as tx:
        [fleet] = read_view(
            tx, LIST_TOPICS.view, LIST_TOPICS.always, columns="coalesce(max(topic_id), 0) AS highest_id"
        )
    is_one_page = fleet["highest_id"] <= PAGE_TOPICS * share["of"]
    begin = 0 if is_one_page else secrets.randbelow(fleet["highest_id"])
    give_up_at = time.monotonic() + BUDGET_SECONDS
    for first, last in ((begin, math.inf), (0, begin)):
        after: int | None = first
        while after is not None and after < last:
            if time.monotonic() >= give_up_at:
                return False
            after = visit(after)
    return True


def _shards(share: Share) -> Shards:
    """Return the topic shards of a share."""
    return Shards.of(share["of"], [share["share"]])
