"""Deletion sweeper: deletes superfluous logs, and repeats a deletion until the log is gone for good.

This is the only module that deletes logs. Prunes, deletions, aborted operations and the reconciler decide
which logs are superfluous. The sweeper demands proof immediately before it deletes: an operation of this
journal created the log, and the log is terminated and empty, or terminated and read to its end by every
subscription. A log without this proof is kept and listed as unmanaged. A deletion entry is closed after the
log was absent twice, with more than the longest call time between the two checks, so that a delayed create
call cannot restore a log unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from controller import telemetry
from controller.dataplane.base import DataPlane, LogReport, LogState, SetWiseDataPlane
from controller.dataplane.log_deletion_rule import FOREIGN, reason_to_keep
from controller.domain.errors import CleaveError, DataPlaneUnavailable, NotFound, StoreUnavailable
from controller.domain.log_origin import Ownership
from controller.store.journal import deletion_entries
from controller.store.journal.deletion_entries import DeletionEntry
from controller.store.postgres.engine import Store
from controller.store.topics import backing_logs, held_topics, unmanaged_logs
from controller.store.topics.unmanaged_logs import UnmanagedLog

log = telemetry.get_logger(__name__)

BATCH = 16
"""Maximum number of deletion entries that are claimed together."""
CALLS_EACH = 6
"""Maximum number of data-plane calls for one entry. The claim of a batch lasts for the calls of all its entries."""
PARALLEL_DELETES = 4
"""Deletions that run in parallel: a broker spends most of a deletion writing its own metadata."""
FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 300.0
"""First and longest delay after a failed deletion; each delay is twice the previous one."""
USED_SIBLING = "another log of the same operation holds messages"


@dataclass(slots=True)
class SweepReport:
    """Result of one sweep, as backing topics."""

    absent: list[str] = field(default_factory=list)
    """Logs that are gone. If it is the second absence of a log, the log is in `closed` too."""
    closed: list[str] = field(default_factory=list)
    """Logs whose deletion entries were closed, because the logs were absent twice."""
    kept: dict[str, str] = field(default_factory=dict)
    """Logs that must not be deleted, with the reasons. Their deletion entries are closed."""
    failed: dict[str, str] = field(default_factory=dict)
    """Logs that still exist or could not be read, with the errors. They are tried again with growing delays.
    """


def sweep(
    store: Store,
    planes: Mapping[str, DataPlane],
    *,
    limit: int = 1000,
    should_stop: Callable[[], bool] = lambda: False,
) -> SweepReport:
    """Process up to `limit` deletion entries that are due, in claimed batches: delete each log that may be deleted,
    and record the result in its entry. Return the results, by backing topic. An entry is closed when its log was
    absent twice, far enough apart, or when the log must be kept; a kept log is listed as unmanaged, and its topic is
    marked as unverified.

    Entries of held topics are skipped. Entries of a data plane that is not in `planes` fail and are tried again
    later. `should_stop` is called before each batch; if it returns True, the sweep ends early. Several sweepers may
    run at once.

    Raises only errors of the store, such as StoreUnavailable. Any other error is recorded as the failure of the
    entry, which is tried again later.
    """
    report = SweepReport()
    longest_call_seconds = max((plane.call_timeout_seconds for plane in planes.values()), default=0.0)
    remaining = limit
    while remaining > 0 and not should_stop():
        batch_size = min(remaining, BATCH)
        due_entries = store.in_single_statement(
            deletion_entries.claim_due,
            limit=batch_size,
            hold_seconds=(batch_size * CALLS_EACH + 1) * longest_call_seconds,
        )
        for plane_name in sorted({entry.data_plane for entry in due_entries}):
            entries = [entry for entry in due_entries if entry.data_plane == plane_name]
            _sweep(store, planes.get(plane_name), entries, longest_call_seconds, report)
        remaining = remaining - batch_size if len(due_entries) == batch_size else 0
    return report


def _sweep(
    store: Store,
    plane: DataPlane | None,
    due_entries: Sequence[DeletionEntry],
    apart_seconds: float,
    report: SweepReport,
) -> None:
    """Delete the logs of one data plane that may be deleted, up to `PARALLEL_DELETES` at a time, and record the
    result for each entry in the database and in `report`.

    All entries fail and are tried again later if the data plane is not configured here (`plane` is None), or if
    describing the logs raises a CleaveError. If describing them raises any other error, each entry is processed by
    itself. `apart_seconds` is the shortest time between the two absences that close an entry. Raises
    StoreUnavailable.
    """
    try:
        set_wise = _demand_set_wise(plane, due_entries[0].data_plane)
        reports = set_wise.describe_logs([entry.backing_topic for entry in due_entries])
    except StoreUnavailable:
        raise
    except Exception as error:
        if not isinstance(error, CleaveError):
            log.exception("logs not described", logs=len(due_entries))
        if len(due_entries) > 1 and not isinstance(error, CleaveError):
            for entry in due_entries:  # One of the logs causes the error, so each is processed alone.
                _sweep(store, plane, [entry], apart_seconds, report)
            return
        for entry in due_entries:
            _fail(store, entry, str(error), report)
        return
    deletable = _deletable(store, set_wise, due_entries, reports, report)
    with ThreadPoolExecutor(PARALLEL_DELETES, thread_name_prefix="sweep") as calls:
        failures = list(calls.map(partial(_delete, set_wise), deletable))
    for entry, failure in zip(deletable, failures, strict=True):
        existed = reports[entry.backing_topic].state is not LogState.MISSING
        _record(store, entry, failure, apart_seconds, existed, report)


def _deletable(
    store: Store,
    plane: SetWiseDataPlane,
    due_entries: Sequence[DeletionEntry],
    reports: Mapping[str, LogReport],
    report: SweepReport,
) -> list[DeletionEntry]:
    """Return the entries whose logs may be deleted; a missing log may be deleted. Every other entry is either closed,
    because its log must be kept (`_keep`), or fails and is tried again later (`_fail`), in the database and in
    `report`. `reports` is keyed by backing topic; an entry without a report fails.

    If an entry discards unread messages, its log may be deleted in any state, provided that this journal created or
    adopted the log. Otherwise the log must be unused or completely read. An existing log of an aborted operation is
    also kept if another log of this operation is or was kept, except as a foreign log (`FOREIGN`).

    Unless the entry discards unread messages, the check may change a log that this journal created: an open log that
    was never used is terminated, and acknowledgements that the broker lost are repeated. Raises StoreUnavailable.
    """

    owners = store.in_transaction(backing_logs.ownership, [entry.backing_topic for entry in due_entries])
    never_active = [
        entry
        for entry in due_entries
        if not owners[entry.backing_topic].was_active and not entry.discards_unread
    ]
    deletable: list[DeletionEntry] = []
    for entry in due_entries:
        try:
            reason = _reason_to_keep(
                plane, entry, reports.get(entry.backing_topic), owners[entry.backing_topic]
            )
            if reason is not None:
                _keep(store, entry, reports[entry.backing_topic], reason, report)
                continue
        except StoreUnavailable:
            raise
        except CleaveError as error:
            _fail(store, entry, str(error), report)
        except Exception as error:  # An unexpected error must not affect the other logs of the batch.
            log.exception("log not checked before its deletion", backing_topic=entry.backing_topic)
            _fail(store, entry, f"{type(error).__name__}: {error}", report)
        else:
            deletable.append(entry)
    with_used_siblings = _with_used_siblings(store, never_active) if never_active else []
    for entry in with_used_siblings:
        if entry in deletable and reports[entry.backing_topic].state is not LogState.MISSING:
            deletable.remove(entry)
            _keep(store, entry, reports[entry.backing_topic], USED_SIBLING, report)
    return deletable


def _with_used_siblings(store: Store, never_active: Sequence[DeletionEntry]) -> list[DeletionEntry]:
    """Return those entries of `never_active` that belong to an operation of which a log was kept, by this sweep or
    earlier, for another reason than `FOREIGN`. The entry's own log counts as well. `never_active` are entries of logs
    whose segments were never ACTIVE, as an aborted operation leaves them. An entry without an operation is not
    returned. Raises StoreUnavailable.

    Clients append to a child only after the reshape was committed. So a used log shows that the database lost the
    commit, and the recovery needs all children of the operation.
    """
    kept = store.in_single_statement(
        deletion_entries.reasons_to_keep, [entry.operation_id for entry in never_active]
    )
    used_operations = {operation_id for operation_id, reason in kept if reason != FOREIGN}
    return [entry for entry in never_active if entry.operation_id in used_operations]


def _delete(plane: DataPlane, deletion_entry: DeletionEntry) -> str | None:
    """Delete the log, also if it was missing, and read its state again. Return None if the log is gone afterwards.
    Otherwise return the error as text: the deletion or the reading failed, or the log exists again. An unexpected
    error is also logged. Raises nothing.
    """
    name = deletion_entry.backing_topic
    try:
        plane.delete_segment(name)  # The data plane may still have parts of a missing log to remove.
        if plane.segment_state(name) is not LogState.MISSING:
            return f"{name} exists again right after its deletion; the deletion will be tried again"
    except CleaveError as error:
        return str(error)
    except Exception as error:
        # An unexpected error must not keep the results of the other logs of the batch from being recorded.
        log.exception("log not deleted", backing_topic=name)
        return f"{type(error).__name__}: {error}"
    return None


def _demand_set_wise(plane: DataPlane | None, name: str) -> SetWiseDataPlane:
    """Return the data plane of this name. Raises CleaveError if the data plane is not configured here (`plane` is None)
    or creates no logs for Cleave.
    """
    if plane is None:
        raise CleaveError(f"data plane {name!r} is not configured here; sweep where it is configured")
    if not isinstance(plane, SetWiseDataPlane):
        raise CleaveError(f"data plane {name!r} creates no logs for Cleave; its broker deletes them")
    return plane


def _reason_to_keep(
    plane: SetWiseDataPlane, deletion_entry: DeletionEntry, report: LogReport | None, owner: Ownership
) -> str | None:
    """Return the reason why the log must not be deleted; None if it may be deleted. A missing log may be deleted; a log
    that this journal neither created nor adopted is kept. If the entry discards unread messages, any other log may be deleted, in
    whatever state; otherwise `reason_to_keep` decides. `report` is None if the log did not answer; `owner` is the
    journal's record of the log's name.

    Before that decision, an open log that was never used is terminated and described again, so that a message that
    arrived in between keeps it. In a terminated log, acknowledgements that a broker lost in a crash are repeated.
    Raises DataPlaneUnavailable if the log is not terminated yet, does not answer, or was missing and exists now; and
    the other errors of the data plane.
    """
    if report is None:
        raise DataPlaneUnavailable(
            f"{deletion_entry.backing_topic} did not answer; the deletion will be tried again"
        )
    if report.state is LogState.MISSING:
        # The state is read a second time, because a log may be moving to another broker.
        if plane.segment_state(deletion_entry.backing_topic) is not LogState.MISSING:
            raise DataPlaneUnavailable(
                f"{deletion_entry.backing_topic} could not be seen for a moment; the deletion will be tried again"
            )
        return None
    if deletion_entry.discards_unread:
        return None if owner.created(report.origin) else FOREIGN
    if owner.created(report.origin) and _prepare_deletion(plane, deletion_entry, report):
        described = plane.describe_logs([deletion_entry.backing_topic]).get(deletion_entry.backing_topic)
        if described is None or described.state is LogState.OPEN:
            raise DataPlaneUnavailable(
                f"{deletion_entry.backing_topic} is not terminated yet; the deletion will be tried again"
            )
        report = described
    return reason_to_keep(report, owner)


def _prepare_deletion(plane: DataPlane, deletion_entry: DeletionEntry, report: LogReport) -> bool:
    """Change the log so that its deletion can be judged, and return True if the log was changed, so that it must be
    described again. An open log that was never used is terminated. In a terminated log, all messages are acknowledged
    for those subscriptions of the entry's `drained_for` that have unread messages: the subscriptions had drained the
    segment, and the broker lost their acknowledgements. An open log that was used is not changed. Raises the errors
    of the data plane.
    """
    if report.state is LogState.OPEN and report.is_unused:
        plane.terminate_segment(deletion_entry.backing_topic)
        return True
    lost_acknowledgements = [
        name for name in deletion_entry.drained_for if name in report.cursors and report.cursors[name].unread
    ]
    for name in lost_acknowledgements if report.state is LogState.TERMINATED else ():
        log.warning(
            "acknowledgements repeated", backing_topic=deletion_entry.backing_topic, subscription=name
        )
        plane.skip_all(deletion_entry.backing_topic, name)
    return bool(lost_acknowledgements) and report.state is LogState.TERMINATED


def _keep(
    store: Store, deletion_entry: DeletionEntry, log_report: LogReport, reason: str, report: SweepReport
) -> None:
    """Close the deletion entry without deleting the log, list the log as unmanaged with the reason, and mark the
    topic as unverified, in one transaction: a log that must be kept is evidence that the journal is behind its logs.
    Log the reason, and add the log to `report.kept`. Raises the errors of `Store.transaction`; the log is then not
    added.
    """
    name = deletion_entry.backing_topic
    log.warning("log kept", backing_topic=name, reason=reason)
    unmanaged_log = UnmanagedLog(
        deletion_entry.topic_id,
        name,
        deletion_entry.segment_id,
        reason,
        log_report.origin,
        log_report.most_unread,
    )
    with store.transaction() as tx:
        deletion_entries.keep(tx, deletion_entry.deletion_entry_id, reason)
        unmanaged_logs.note(tx, deletion_entry.data_plane, unmanaged_log)
        held_topics.doubt(tx, [deletion_entry.topic_id])
    report.kept[name] = reason
    report.failed.pop(name, None)  # an earlier batch of this sweep may have failed


def _record(
    store: Store,
    deletion_entry: DeletionEntry,
    failure: str | None,
    apart_seconds: float,
    existed: bool,
    report: SweepReport,
) -> None:
    """Record the result of a deletion in the database and in `report`. `failure` is the error text of `_delete`; None
    if the log is gone. A failure defers the entry (`_fail`). An absence is recorded, and closes the entry if an
    earlier absence was more than `apart_seconds` before. `existed` says that the log was there before this deletion;
    earlier absences then do not count.

    An absence is neither recorded nor reported if another sweeper has closed the entry. Raises the errors of
    `Store.transaction`.
    """
    if failure is not None:
        _fail(store, deletion_entry, failure, report)
        return
    try:
        with store.transaction() as tx:
            if existed and deletion_entry.absences > 0:
                deletion_entries.record_failure(
                    tx, deletion_entry.deletion_entry_id, "it came back", delay_seconds=0.0
                )
            closed = deletion_entries.record_absence(
                tx, deletion_entry.deletion_entry_id, apart_seconds=apart_seconds
            )
    except NotFound:  # Another sweeper closed the entry.
        return
    if deletion_entry.backing_topic not in report.absent:
        report.absent.append(deletion_entry.backing_topic)
    report.failed.pop(deletion_entry.backing_topic, None)  # an earlier batch of this sweep may have failed
    if closed:
        report.closed.append(deletion_entry.backing_topic)


def _fail(store: Store, deletion_entry: DeletionEntry, reason: str, report: SweepReport) -> None:
    """Log the failure, add it to `report.failed`, and defer the entry in the database. The delay begins at
    `FIRST_DELAY_SECONDS` and doubles with each attempt, up to `LONGEST_DELAY_SECONDS`. Earlier absences of the log no
    longer count. Raises the errors of `Store.transaction`.
    """
    log.warning("log not deleted", backing_topic=deletion_entry.backing_topic, error=reason)
    report.failed[deletion_entry.backing_topic] = reason
    with suppress(ValueError):  # the log was gone in an earlier batch of this sweep, and came back
        report.absent.remove(deletion_entry.backing_topic)
    delay_seconds = min(FIRST_DELAY_SECONDS * 2 ** min(deletion_entry.attempts, 10), LONGEST_DELAY_SECONDS)
    store.in_transaction(
        deletion_entries.record_failure, deletion_entry.deletion_entry_id, reason, delay_seconds=delay_seconds
    )
