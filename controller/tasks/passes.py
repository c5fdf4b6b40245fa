"""Fleet passes: evaluate the topics that are due in some lanes, and run the operations if no worker is
running.

The table `evaluation` is the only source of work, so a task reads it regardless of what started the task.
One task is sufficient for a quiet fleet. Much work is divided into a few bounded shares; the rest waits for
the next pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from math import ceil
from typing import Any

from controller import telemetry
from controller.actions.wait_for_operation import worker_is_up
from controller.bootstrap import Application
from controller.command_output import emit, rows_table
from controller.domain.decision import Lane
from controller.questions.question import read_view
from controller.services import approval_answers, autoscaler
from controller.services.autoscaler import PassResult
from controller.store.decisions import evaluations
from controller.store.journal import claims
from controller.store.postgres.clock import database_now
from controller.store.shards import Shards
from controller.store.topics import topics
from controller.tasks import dag_runs
from controller.tasks.application_of_connection import Extras, cleave_at
from controller.tasks.run_operations import run_without_worker

log = telemetry.get_logger(__name__)

BATCHES_ALONE = 10
"""Batches (of `pass_batch_topics` topics each) that one task processes before it requests more tasks."""
SHARES_AT_MOST = 8
"""Maximum number of further tasks that a pass requests."""
BATCHES_A_SHARE = 40
"""Batches that the task of one share processes."""
SHOWN_AT_MOST = 50
"""Maximum number of topics in the logged table, and of operations in the summary."""

Share = Mapping[str, int]
"""Topics whose id modulo `of` is `share`: `{"share": 0, "of": 4}`."""


def split_pass(
    *, dsn: str, extras: Extras, decided_by: str, dry_run: bool = False, share: Share | None = None
) -> dict[str, Any]:
    """Run a pass over the load lane, and over the consumer lane if no worker is running; of all topics, or of
    those of one share, whose id modulo `of` is `share`. `decided_by` is recorded as the actor. Return its
    summary. Summary, dry run and errors are as `_pass` describes.
    """
    with cleave_at(dsn, extras) as app:
        lanes = {Lane.LOAD} if worker_is_up(app) else {Lane.LOAD, Lane.CONSUMER}
        return _pass(app, lanes, decided_by, dry_run, share)


def split_pass_has_work(*, dsn: str, extras: Extras) -> bool:
    """Return True if the load lane has work that is due by the database's clock. Without a running worker, return True
    also for due work of the consumer lane and for due operations. Reads indexes only, so that a check each minute costs
    almost nothing. Changes nothing.
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


def merge_pass(
    *, dsn: str, extras: Extras, decided_by: str, dry_run: bool = False, share: Share | None = None
) -> dict[str, Any]:
    """Run a pass over the merge lane only, and return its summary. Parameters, summary, dry run and errors
    are as in `split_pass`.
    """
    with cleave_at(dsn, extras) as app:
        return _pass(app, {Lane.MERGE}, decided_by, dry_run, share)


def _pass(
    app: Application, lanes: Collection[Lane], decided_by: str, dry_run: bool, share: Share | None
) -> dict[str, Any]:
    """Apply the defaults of expired approvals, evaluate topics that are due, at most `BATCHES_ALONE` batches
    (with a share `BATCHES_A_SHARE`), log the actions, and run due operations if no worker is running. If
    actions were decided, add their number to the note of the DAG run. A dry run only evaluates, logs and adds
    the note.

    In the summary, `shares` are the tasks to request: none if nothing is left, for a pass over a share, and in a
    dry run. `unasked` is True if an approval awaits an answer and no run presents it (False in a dry run). Raises
    the errors of `autoscaler.run_pass`.
    """
    limit = app.settings.pass_batch_topics * (BATCHES_ALONE if share is None else BATCHES_A_SHARE)
    if not dry_run:
        approval_answers.settle(app.store)
    result = autoscaler.run_pass(
        app.store,
        app.planes,
        lanes,
        decided_by=decided_by,
        limit=limit,
        shards=None if share is None else Shards.of(share["of"], [share["share"]]),
        batch_topics=app.settings.pass_batch_topics,
        dry_run=dry_run,
    )
    _log_actions(app, result)
    decided = sum(len(outcome.evaluation.decisions) for outcome in result.outcomes)
    if decided:
        operations = ", ".join(map(str, result.operation_ids[:SHOWN_AT_MOST]))
        result_text = (
            f"would decide {decided} actions"
            if dry_run
            else f"decided {decided} actions, in operations {operations}"
        )
        dag_runs.note(app.settings, decided_by, f"evaluated {result.evaluated} topics and {result_text}")
    is_full = result.evaluated + len(result.still_dirty) >= limit
    return {
        "lanes": sorted(lanes),
        "evaluated": result.evaluated,
        "decisions": decided,
        "operations": list(result.operation_ids[:SHOWN_AT_MOST]),
        "left_to_others": len(result.still_dirty),
        "run_here": 0 if dry_run else run_without_worker(app),
        "shares": _shares(app, lanes) if share is None and is_full and not dry_run else [],
        "unasked": not dry_run and approval_answers.some_unasked(app.store),
    }


def _shares(app: Application, lanes: Collection[Lane]) -> list[dict[str, int]]:
    """Return the shares of all topics, one for each `BATCHES_ALONE` batches of topics that are still due in
    these lanes, at most `SHARES_AT_MOST`; none if no topic is due.
    """
    with app.store.transaction() as tx:
        [backlog] = read_view(
            tx,
            "inspect.evaluation_backlog",
            "lane = ANY (:lanes)",
            "NOT coalesce(paused, false)",
            columns="count(DISTINCT topic_id) AS topics",
            lanes=sorted(lanes),
        )
    share_count = min(
        ceil(backlog["topics"] / (app.settings.pass_batch_topics * BATCHES_ALONE)), SHARES_AT_MOST
    )
    return [{"share": number, "of": share_count} for number in range(share_count)]


def _log_actions(app: Application, result: PassResult) -> None:
    """Log the counts of the pass and, if topics act, a table of their actions, limited to `SHOWN_AT_MOST`
    topics.
    """
    acting = [outcome for outcome in result.outcomes if outcome.evaluation.decisions]
    log.info("pass", evaluated=result.evaluated, acting=len(acting), left_to_others=len(result.still_dirty))
    if not acting:
        return
    shown = acting[:SHOWN_AT_MOST]
    topic_rows = app.store.in_transaction(topics.get_topics, [outcome.topic_id for outcome in shown])
    names = {row.topic_id: row.name for row in topic_rows}
    rows = [
        {"topic": names.get(outcome.topic_id, outcome.topic_id), "decision": outcome.decision_id, **action}
        for outcome in shown
        for action in outcome.evaluation.to_document()["decisions"]
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    emit(False, None, rows_table(rows, columns, title=f"{len(shown)} of {len(acting)} topics that act"))
