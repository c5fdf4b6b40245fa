"""Tombstone sweeper: deletes logs that nobody needs any more, and repeats it until they are gone for good.

The only place that deletes a log. A tombstone closes after two absences more than the longest call apart, so that a
create call held up on its way cannot bring a log back unseen. Prunes, deletions, aborts and the reconciler decide which
logs are superfluous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controller import telemetry
from controller.dataplane.base import DataPlane, LogState
from controller.domain.errors import CleaveError, StoreUnavailable
from controller.store.journal import tombstones
from controller.store.journal.tombstones import Tombstone
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)

BATCH = 16
CALLS_EACH = 3
FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 300.0


@dataclass(slots=True)
class SweepReport:
    """What one sweep did; backing topics of each kind."""

    absent: list[str] = field(default_factory=list)
    """Found gone, now or already; closed too when this was the second time."""
    closed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Still there or not looked at, with the error; tried again later, ever more rarely."""


def sweep(
    store: Store,
    planes: Mapping[str, DataPlane],
    *,
    limit: int = 1000,
    should_stop: Callable[[], bool] = lambda: False,
) -> SweepReport:
    """Work through up to `limit` tombstones that are due. Several sweepers may run; StoreUnavailable only is raised."""
    swept = SweepReport()
    longest_call_seconds = max((plane.call_timeout_seconds for plane in planes.values()), default=0.0)
    left = limit
    while left > 0 and not should_stop():
        batch = min(left, BATCH)
        with store.single_statement() as tx:
            due = tombstones.claim_due(
                tx, limit=batch, hold_seconds=(batch * CALLS_EACH + 1) * longest_call_seconds
            )
        for tombstone in due:
            _delete(store, planes, tombstone, longest_call_seconds, swept)
        left = left - batch if len(due) == batch else 0
    return swept


def _delete(
    store: Store,
    planes: Mapping[str, DataPlane],
    tombstone: Tombstone,
    apart_seconds: float,
    swept: SweepReport,
) -> None:
    name = tombstone.backing_topic
    try:
        was_there = _delete_log(planes, tombstone)
        with store.transaction() as tx:
            if was_there and tombstone.absences > 0:
                tombstones.record_failure(tx, tombstone.tombstone_id, "it came back", delay_seconds=0.0)
            closed = tombstones.record_absence(tx, tombstone.tombstone_id, apart_seconds=apart_seconds)
        swept.absent.append(name)
        if closed:
            swept.closed.append(name)
    except StoreUnavailable:
        raise
    except CleaveError as error:
        log.warning("log not deleted", backing_topic=name, error=str(error))
        swept.failed[name] = str(error)
        delay_seconds = min(FIRST_DELAY_SECONDS * 2 ** min(tombstone.attempts, 10), LONGEST_DELAY_SECONDS)
        with store.transaction() as tx:
            tombstones.record_failure(tx, tombstone.tombstone_id, str(error), delay_seconds=delay_seconds)


def _delete_log(planes: Mapping[str, DataPlane], tombstone: Tombstone) -> bool:
    """Delete and make sure; returns whether there was something to delete."""
    plane = planes.get(tombstone.data_plane)
    if plane is None:
        raise CleaveError(
            f"data plane {tombstone.data_plane!r} is not configured here; sweep where it is configured"
        )
    was_there = plane.segment_state(tombstone.backing_topic) is not LogState.MISSING
    plane.delete_segment(
        tombstone.backing_topic
    )  # even if gone: a plane may still have parts of it to remove
    if plane.segment_state(tombstone.backing_topic) is not LogState.MISSING:
        raise CleaveError(f"{tombstone.backing_topic} is there again right after its deletion; trying again")
    return was_there
