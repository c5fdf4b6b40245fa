"""The periodic aggregation of landed samples into load records, and the maintenance of its files."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from controller.bootstrap import key_count_area, run_aggregation
from controller.clock import to_ms
from controller.domain.load_window import LoadWindow
from controller.landing.area import LandingArea
from controller.landing.compaction import compact
from controller.landing.history import RateHistory
from controller.landing.scratch import sweep
from controller.services.load_aggregation import publish_left_over, upcoming
from controller.store.postgres.clock import database_now
from controller.tasks.application_of_connection import Extras, cleave_at


def aggregate_load(*, dsn: str, extras: Extras, run_id: str, dry_run: bool = False) -> dict[str, Any]:
    """Aggregate the window that ends now, by the database's clock, and return the result of the run. A dry
    run returns the end of the window and the files that it would read, and changes nothing.

    A repeated call with the same `run_id` changes nothing after the run was merged. Characters of the id that
    a file's name cannot have become `-`. Raises the errors of `run_aggregation`.
    """
    with cleave_at(dsn, extras) as app:
        now = app.store.in_transaction(database_now)
        end_ms = to_ms(now)
        if dry_run:
            window = LoadWindow.ending_at(end_ms, app.settings.rate_window_seconds)
            files = upcoming(LandingArea(app.settings.landing_url), window)
            return {"window_end": now.isoformat(), "files": [file.path for file in files]}
        result = run_aggregation(app.settings, re.sub(r"[^A-Za-z0-9._-]", "-", run_id), end_ms)
    return {**asdict(result), "quarantined": list(result.quarantined)}


def keep_landing(*, dsn: str, extras: Extras, dry_run: bool = False) -> dict[str, Any]:
    """Compact the small files of past hours, publish the rates of runs that were interrupted after their
    merge, and delete the files of other interrupted runs. Delete days of samples and key counts older than
    `landing_keep_days`, and days of rates older than `history_keep_days`. Return what was done; a dry run
    only returns the days. Raises StoreUnavailable, and OSError if the storage does not answer.
    """
    with cleave_at(dsn, extras) as app:
        settings = app.settings
        area, history = LandingArea(settings.landing_url), RateHistory(settings.history_location)
        now = app.store.in_transaction(database_now)
        oldest_landing = now.date() - timedelta(days=settings.landing_keep_days)
        oldest_history = now.date() - timedelta(days=settings.history_keep_days)
        if dry_run:
            return {"would_delete_before": {"landing": str(oldest_landing), "history": str(oldest_history)}}
        published = publish_left_over(app.store, history)
    now_ms = to_ms(now)
    swept = sweep(history.location, now_ms)
    compacted = compact(area, now_ms)
    return {
        "compacted": compacted.replaced,
        "written": list(compacted.written),
        "deleted_files": compacted.deleted,
        "left_out": [file.path for file in (*compacted.rejected, *compacted.unreadable)],
        "published": list(published),
        "swept": swept,
        "expired": [
            *area.expire(oldest_landing),
            *key_count_area(settings).expire(oldest_landing),
            *history.expire(oldest_history),
        ],
    }
