"""The minute's aggregation: from landed samples to load records."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from controller.bootstrap import run_aggregation
from controller.entrypoints.tasks.access import Extras, cleave_at
from controller.landing.area import LandingArea
from controller.services.load_aggregation import upcoming
from controller.store.topics import database_now


def aggregate_load(*, dsn: str, extras: Extras, run_id: str, dry_run: bool = False) -> dict[str, Any]:
    """Aggregate the window that ends now, by the database's clock.

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
    return {**asdict(result), "quarantined": list(result.quarantined)}
