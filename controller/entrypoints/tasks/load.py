"""The minute's aggregation: from landed samples to load records, and whether a split pass has reason to look."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from controller.bootstrap import run_aggregation
from controller.entrypoints.tasks.access import Extras, cleave_at
from controller.landing.area import LandingArea
from controller.services.load_aggregation import upcoming
from controller.store import inspection
from controller.store.topics import database_now

_TO_DECIDE = """
    SELECT count(*) AS topics FROM inspect.evaluation_backlog WHERE lane = 'load' AND NOT coalesce(paused, false)"""


def aggregate_load(*, dsn: str, extras: Extras, run_id: str, dry_run: bool = False) -> dict[str, Any]:
    """Aggregate the window that ends now, by the database's clock. `to_decide` is how many topics a split pass has.

    A repeat under the same `run_id` changes nothing once it was merged.
    """
    with cleave_at(dsn, extras) as app:
        with app.store.transaction() as tx:
            now = database_now(tx)
        end_ms = int(now.timestamp() * 1000)
        if dry_run:
            files = upcoming(LandingArea(app.settings.landing_url), app.settings.rate_window_seconds, end_ms)
            return {"window_end": now.isoformat(), "files": [file.path for file in files]}
        result = run_aggregation(
            app.settings, run_id=re.sub(r"[^A-Za-z0-9._-]", "-", run_id), window_end_ms=end_ms
        )
        with app.store.transaction() as tx:
            to_decide = inspection.rows(tx, _TO_DECIDE)[0]["topics"]
    return {**asdict(result), "quarantined": list(result.quarantined), "to_decide": to_decide}
