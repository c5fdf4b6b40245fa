"""Finishes the history of runs that were interrupted between their merge and its publication.

The database records which runs were merged. A note in each scratch directory names the run of its rates. The
directory of a run that was not merged stays: the run is in progress, or the directory is deleted when it is
old. A live run may publish at the same time; both then move the same files to the same names.
"""

from __future__ import annotations

from controller import telemetry
from controller.clock import to_datetime
from controller.landing.history import RateHistory
from controller.store.load.records import merged
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)


def publish_left_over(store: Store, history: RateHistory) -> tuple[str, ...]:
    """Publish to the history the rates of runs that were merged but not published, because the run was interrupted.
    Delete their scratch directories, and log each. Return the ids of these runs; empty if there are none. If other
    rates of the same window are stored already, the rates of the run are deleted without being published, and its id
    is returned nevertheless. Scratch directories of runs that were not merged, or were merged with another window end
    than the directory names, stay. `store` may log in as the loader.

    Raises StoreUnavailable, and OSError if the storage does not answer. After an error, the next call publishes the
    rates that remain.
    """
    unpublished = history.left_over()
    if not unpublished:
        return ()
    with store.transaction() as tx:
        merged_runs = merged(tx, [run.run_id for _, run in unpublished])
    published_ids = []
    for scratch, run in unpublished:
        if (run.run_id, to_datetime(run.window_end_ms)) in merged_runs:
            history.publish(scratch, run.window_end_ms)
            scratch.discard()
            log.info("history of a dead run published", run=run.run_id, window_end_ms=run.window_end_ms)
            published_ids.append(run.run_id)
    return tuple(published_ids)
