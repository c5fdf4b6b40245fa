"""Tombstone sweeper: deletes logs that nobody needs any more, and repeats it until they are gone for good.

The only place that deletes a log. Prunes, deletions, aborts and the reconciler decide which logs are superfluous; the
sweeper demands proof immediately before it deletes: an operation of this journal created the log, and the log is closed
and empty, or closed and read to its end by every subscription. A log without that proof is kept and listed as foreign. A
tombstone closes after two absences more than the longest call apart, so that a create call held up on its way cannot
bring a log back unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from controller import telemetry
from controller.dataplane.base import DataPlane, LogReport, LogState, SetWiseDataPlane
from controller.dataplane.deletion_proof import FOREIGN, reason_to_keep
from controller.domain.errors import CleaveError, DataPlaneUnavailable, NotFound, StoreUnavailable
from controller.domain.log_origin import Ownership
from controller.store.journal import tombstones
from controller.store.journal.tombstones import Tombstone
from controller.store.postgres.engine import Store
from controller.store.topics import backing_logs, foreign_logs, holds
from controller.store.topics.foreign_logs import ForeignLog

log = telemetry.get_logger(__name__)

BATCH = 16
CALLS_EACH = 5
PARALLEL_DELETES = 4
"""A broker takes most of a deletion's time to write its own metadata."""
FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 300.0
USED_SIBLING = "another log of the same operation holds messages"


@dataclass(slots=True)
class SweepReport:
    """What one sweep did; backing topics of each kind."""

    absent: list[str] = field(default_factory=list)
    """Found gone, now or already; closed too when this was the second time."""
    closed: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Logs that must not be deleted, with the reason; their tombstones are closed."""
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
        for plane_name in sorted({one.data_plane for one in due}):
            some = [one for one in due if one.data_plane == plane_name]
            _sweep(store, planes.get(plane_name), some, longest_call_seconds, swept)
        left = left - batch if len(due) == batch else 0
    return swept


def _sweep(
    store: Store,
    plane: DataPlane | None,
    due: Sequence[Tombstone],
    apart_seconds: float,
    swept: SweepReport,
) -> None:
    """Delete those logs of one data plane that may be deleted, and record what became of each."""
    try:
        reports = _reports(plane, due)
    except StoreUnavailable:
        raise
    except Exception as error:
        if not isinstance(error, CleaveError):
            log.exception("logs not looked at", logs=len(due))
        if len(due) > 1 and not isinstance(error, CleaveError):
            for one in due:  # it is one log's trouble
                _sweep(store, plane, [one], apart_seconds, swept)
            return
        for one in due:
            _fail(store, one, str(error), swept)
        return
    deletable = _deletable(store, plane, due, reports, swept)
    if plane is None:
        return
    with ThreadPoolExecutor(PARALLEL_DELETES, thread_name_prefix="sweep") as calls:
        failures = list(calls.map(partial(_delete, plane), deletable))
    for one, failure in zip(deletable, failures, strict=True):
        was_there = reports[one.backing_topic].state is not LogState.MISSING
        _record(store, one, failure, apart_seconds, was_there, swept)


def _deletable(
    store: Store,
    plane: DataPlane | None,
    due: Sequence[Tombstone],
    reports: Mapping[str, LogReport],
    swept: SweepReport,
) -> list[Tombstone]:
    """Return those whose logs may be deleted; the others are kept, or tried again later."""
    with store.transaction() as tx:
        owners = backing_logs.ownership(tx, [one.backing_topic for one in due])
    unplaced = [one for one in due if not owners[one.backing_topic].was_active and not one.discards_unread]
    deletable: list[Tombstone] = []
    for one in due:
        try:
            kept_because = _judge(plane, one, reports, owners[one.backing_topic])
            if kept_because is not None:
                _keep(store, one, reports[one.backing_topic], kept_because, swept)
                continue
        except StoreUnavailable:
            raise
        except CleaveError as error:
            _fail(store, one, str(error), swept)
        except Exception as error:  # the others of the batch would be left alone with it
            log.exception("log not judged", backing_topic=one.backing_topic)
            _fail(store, one, f"{type(error).__name__}: {error}", swept)
        else:
            deletable.append(one)
    with_used = _with_used_siblings(store, unplaced) if unplaced else []
    for one in with_used:
        if one in deletable and reports[one.backing_topic].state is not LogState.MISSING:
            deletable.remove(one)
            _keep(store, one, reports[one.backing_topic], USED_SIBLING, swept)
    return deletable


def _with_used_siblings(store: Store, unplaced: Sequence[Tombstone]) -> list[Tombstone]:
    """Return the logs of aborted operations of which another log is kept.

    Clients append to a child only after the reshape was committed. So the database lost the commit, and the recovery needs
    all children of the operation.
    """
    with store.single_statement() as tx:
        kept = tombstones.reasons_to_keep(tx, [one.operation_id for one in unplaced])
    used = {operation_id for operation_id, reason in kept if reason != FOREIGN}
    return [one for one in unplaced if one.operation_id in used]


def _judge(
    plane: DataPlane | None, tombstone: Tombstone, reports: Mapping[str, LogReport], owner: Ownership
) -> str | None:
    report = reports.get(tombstone.backing_topic)
    if report is None or not isinstance(plane, SetWiseDataPlane):
        raise DataPlaneUnavailable(f"{tombstone.backing_topic} did not answer; trying again")
    return _reason_to_keep(plane, tombstone, report, owner)


def _delete(plane: DataPlane, tombstone: Tombstone) -> str | None:
    """Delete the log and look at it again. Return what went wrong; None if the log is gone."""
    name = tombstone.backing_topic
    try:
        plane.delete_segment(name)  # even if gone: a plane may still have parts of it to remove
        if plane.segment_state(name) is not LogState.MISSING:
            return f"{name} is there again right after its deletion; trying again"
    except CleaveError as error:
        return str(error)
    except Exception as error:  # what became of the others of the batch would not be recorded
        log.exception("log not deleted", backing_topic=name)
        return f"{type(error).__name__}: {error}"
    return None


def _reports(plane: DataPlane | None, due: Sequence[Tombstone]) -> Mapping[str, LogReport]:
    if plane is None:
        raise CleaveError(
            f"data plane {due[0].data_plane!r} is not configured here; sweep where it is configured"
        )
    if not isinstance(plane, SetWiseDataPlane):
        raise CleaveError(f"data plane {plane.name!r} makes no logs for Cleave: its broker deletes them")
    return plane.describe_logs([one.backing_topic for one in due])


def _reason_to_keep(
    plane: SetWiseDataPlane, tombstone: Tombstone, report: LogReport, owner: Ownership
) -> str | None:
    """Return the reason for which the log must not be deleted; None if it is gone, or closed and superfluous.

    An open log that was never used is terminated first, and described again: a message that came meanwhile keeps it. A broker
    that lost acknowledgements of a pruned segment in a crash is given them once more.
    """
    if report.state is LogState.MISSING:
        return None
    if tombstone.discards_unread:
        return None if owner.created(report.origin) else FOREIGN
    if owner.created(report.origin) and _complete(plane, tombstone, report):
        described = plane.describe_logs([tombstone.backing_topic]).get(tombstone.backing_topic)
        if described is None or described.state is LogState.OPEN:
            raise DataPlaneUnavailable(f"{tombstone.backing_topic} is not closed yet; trying again")
        report = described
    return reason_to_keep(report, owner)


def _complete(plane: DataPlane, tombstone: Tombstone, report: LogReport) -> bool:
    """Terminate an unused log, or repeat lost acknowledgements. Return True if the log was changed."""
    if report.state is LogState.OPEN and report.is_unused:
        plane.terminate_segment(tombstone.backing_topic)
        return True
    lost = [name for name in tombstone.drained_for if name in report.cursors and report.cursors[name].unread]
    for name in lost if report.state is LogState.TERMINATED else ():
        log.warning("acknowledgements repeated", backing_topic=tombstone.backing_topic, subscription=name)
        plane.skip_all(tombstone.backing_topic, name)
    return bool(lost) and report.state is LogState.TERMINATED


def _keep(store: Store, tombstone: Tombstone, report: LogReport, reason: str, swept: SweepReport) -> None:
    """Close the tombstone and list the log. That it has to be kept is evidence that the journal is behind its logs."""
    name = tombstone.backing_topic
    log.warning("log kept", backing_topic=name, reason=reason)
    swept.kept[name] = reason
    kept = ForeignLog(
        tombstone.topic_id, name, tombstone.segment_id, reason, report.origin, report.most_unread
    )
    with store.transaction() as tx:
        tombstones.keep(tx, tombstone.tombstone_id, reason)
        foreign_logs.note(tx, tombstone.data_plane, kept)
        holds.doubt(tx, [tombstone.topic_id])


def _record(
    store: Store,
    tombstone: Tombstone,
    failure: str | None,
    apart_seconds: float,
    was_there: bool,
    swept: SweepReport,
) -> None:
    if failure is not None:
        _fail(store, tombstone, failure, swept)
        return
    try:
        with store.transaction() as tx:
            if was_there and tombstone.absences > 0:
                tombstones.record_failure(tx, tombstone.tombstone_id, "it came back", delay_seconds=0.0)
            closed = tombstones.record_absence(tx, tombstone.tombstone_id, apart_seconds=apart_seconds)
    except NotFound:  # another sweeper closed it
        return
    swept.absent.append(tombstone.backing_topic)
    if closed:
        swept.closed.append(tombstone.backing_topic)


def _fail(store: Store, tombstone: Tombstone, why: str, swept: SweepReport) -> None:
    log.warning("log not deleted", backing_topic=tombstone.backing_topic, error=why)
    swept.failed[tombstone.backing_topic] = why
    delay_seconds = min(FIRST_DELAY_SECONDS * 2 ** min(tombstone.attempts, 10), LONGEST_DELAY_SECONDS)
    with store.transaction() as tx:
        tombstones.record_failure(tx, tombstone.tombstone_id, why, delay_seconds=delay_seconds)
