"""Finish the history of runs that died between their merge and its publishing.

The database says which runs were merged. A note in each scratch directory says which run its rates are of. What was not
merged stays: its run is under way, or it is swept when it is old. A live run may be publishing at the same time; both
then move the same files to the same names.
"""

from __future__ import annotations

from controller import telemetry
from controller.landing.history import RateHistory
from controller.store.load.runs import RunOfWindow, merged
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)


def publish_left_over(store: Store, history: RateHistory) -> tuple[str, ...]:
    """Publish what is merged and not published; returns the runs. `store` may log in as the loader.

    Raises StoreUnavailable, and OSError when the storage does not answer: what is left then is found again.
    """
    found = {scratch: RunOfWindow(note.run_id, note.window_end_ms) for scratch, note in history.left_over()}
    if not found:
        return ()
    with store.transaction() as tx:
        known = merged(tx, found.values())
    done = []
    for scratch, run in found.items():
        if run in known:
            history.publish(scratch, run.window_end_ms)
            scratch.discard()
            log.info(
                "history of a run that died is published", run=run.run_id, window_end_ms=run.window_end_ms
            )
            done.append(run.run_id)
    return tuple(done)
