"""Differences between the metadata and the data plane: their kinds, and the comparison.

Pure; performs no I/O. The caller passes the listed logs, the descriptions of single logs, and the metadata
before and after. A log is compared only if the metadata before and after shows it unchanged and idle. `ahead`
detects logs that are ahead of the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from controller.dataplane.base import MISSING_LOG, LogReport, LogState
from controller.dataplane.deletion_proof import reason_to_keep
from controller.domain.log_origin import NOT_RESERVED, Ownership
from controller.domain.segment import SegmentState, segment_of_log
from controller.store.topics.backing_logs import BackingLog, ExpectedLogs


class FindingKind(StrEnum):
    """Kind of a difference between the metadata and the data plane, with its remedy."""

    LOGS_AHEAD = "logs-ahead"
    """The logs show reshapes that the journal lacks. The layout is rebuilt from the logs, or the topic is
    held.
    """
    ORPHAN_LOG = "orphan-log"
    """An operation of this journal created the log, and no segment needs it. It is deleted through a deletion
    entry.
    """
    UNMANAGED_LOG = "unmanaged-log"
    """An unmanaged log: another journal or program created it, or its messages are unread. It is listed and
    kept.
    """
    ACTIVE_MISSING = "active-missing"
    """The log of an active segment is missing. It is created again, with the recorded subscriptions and those
    of its parents.
    """
    ACTIVE_TERMINATED = "active-terminated"
    """The log of an active segment is terminated. The segment is repaired by a journalled reshape of one
    segment into one.
    """
    SEALED_OPEN = "sealed-open"
    """The log of a sealed segment is open. It is terminated."""
    SEALED_MISSING = "sealed-missing"
    """The log of a sealed segment is missing, so its data is lost. The segment counts as drained, so that its
    children are assigned and it can be pruned.
    """
    UNREAD_AGAIN = "unread-again"
    """The segment is recorded as drained, but the data plane has unread messages. The record is removed."""
    CURSOR_MISSING = "cursor-missing"
    """A recorded subscription has no cursor. It is created at the earliest message."""
    GATE_OPEN = "gate-open"
    """Ancestors of the segment are unread, and nothing holds its messages back from standard consumers: closed by the gate keeper."""
    GATE_SHUT = "gate-shut"
    """Every ancestor is read, and the data plane still holds the messages back: opened by the gate keeper."""
    GATE_BREACHED = "gate-breached"
    """Closed, but a consumer has acknowledged the barrier: set the crypto failure action of the application's consumers to FAIL."""
    CURSOR_UNRECORDED = "cursor-unrecorded"
    """An application, or a delayed call, created the cursor. It is reported and kept."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. `error` is the reason why its remedy failed; a later run finds the difference again."""

    kind: FindingKind
    topic: str
    backing_topic: str
    segment_id: int | None = None
    subscription: str | None = None
    operation_id: int | None = None
    error: str | None = None
    reason: str | None = None
    """Evidence for the finding, if the kind is not sufficient."""
    report: LogReport | None = field(default=None, repr=False, compare=False)
    """Description of an unmanaged log."""


@dataclass(frozen=True, slots=True)
class PlaneView:
    """State of the data plane before the metadata was locked."""

    listed: tuple[str, ...]
    reports: Mapping[str, LogReport]
    """Reports by name: of every log of a segment in `books`, and of listed logs if they were described."""
    books: ExpectedLogs
    """The metadata before single logs were described. Logs that changed since are not compared."""

    def state(self, log: BackingLog) -> LogState:
        """Return the state of a segment's log."""
        return self.reports.get(log.backing_topic, MISSING_LOG).state


def compare(
    topic: str,
    seen: PlaneView,
    books: ExpectedLogs,
    ownership: Mapping[str, Ownership],
) -> list[Finding]:
    """Return all differences. The caller has read `books` under the topic's lock, after everything in `seen`."""
    differences = _differences(topic, seen, books)
    if _is_elsewhere(seen, differences):
        count = len(seen.books.logs)
        error = (
            f"none of the {count} logs of {topic} is on its data plane, so the difference is not repaired: check that the "
            "address names the cluster of the logs; if the logs are lost, delete the topic"
        )
        differences = [replace(difference, error=error) for difference in differences]
    return [*_unexpected_logs(topic, seen, books, ownership), *differences]


def _is_elsewhere(seen: PlaneView, differences: Sequence[Finding]) -> bool:
    """Return True if the data plane seems to be another cluster: unread logs are missing, and no log exists.

    Creating the active logs again would be the first step to counting the others as read to their end.
    """
    loses_data = any(difference.kind is FindingKind.SEALED_MISSING for difference in differences)
    return loses_data and all(seen.state(log) is LogState.MISSING for log in seen.books.logs)


def _unexpected_logs(
    topic: str, seen: PlaneView, books: ExpectedLogs, ownership: Mapping[str, Ownership]
) -> list[Finding]:
    """Return findings about logs that the metadata does not expect: orphaned logs if they may be deleted,
    otherwise unmanaged logs.
    """
    findings = []
    for name in seen.listed:
        if name in books.names:
            continue
        segment = segment_of_log(name)
        segment_id = None if segment is None else segment[1]
        report = seen.reports.get(name, MISSING_LOG)
        own = ownership.get(name, NOT_RESERVED)
        reason_to_keep_log = reason_to_keep(report, own)
        kind = FindingKind.ORPHAN_LOG if reason_to_keep_log is None else FindingKind.UNMANAGED_LOG
        findings.append(Finding(kind, topic, name, segment_id, reason=reason_to_keep_log, report=report))
    return findings


def _differences(topic: str, seen: PlaneView, books: ExpectedLogs) -> list[Finding]:
    """Return the differences of every log that the metadata shows unchanged and idle before and after it was
    described.
    """
    if books.topic_state != "live":
        return []
    before = {log.segment_id: log for log in seen.books.logs}
    findings = []
    for log in books.logs:
        if before.get(log.segment_id) != log or log.is_busy:
            continue
        finding = Finding(FindingKind.ACTIVE_MISSING, topic, log.backing_topic, log.segment_id)
        kind = _kind_of_difference(log, seen.state(log))
        if kind is not None:
            findings.append(replace(finding, kind=kind))
        elif log.state is SegmentState.SEALED:
            findings += [] if books.is_verified else _unread_again(finding, log, seen)
        elif not (books.changes_subscriptions or seen.books.changes_subscriptions):
            findings += _cursor_differences(finding, seen, books)
    return findings


def _unread_again(of_log: Finding, log: BackingLog, seen: PlaneView) -> list[Finding]:
    """Return a finding for each subscription that was moved back in a time that the journal lost."""
    cursors = seen.reports.get(log.backing_topic, MISSING_LOG).cursors
    return [
        replace(of_log, kind=FindingKind.UNREAD_AGAIN, subscription=name)
        for name in sorted(log.drained_by)
        if name in cursors and cursors[name].unread > 0
    ]


def _kind_of_difference(log: BackingLog, state: LogState) -> FindingKind | None:
    return {
        (SegmentState.ACTIVE, LogState.MISSING): FindingKind.ACTIVE_MISSING,
        (SegmentState.ACTIVE, LogState.TERMINATED): FindingKind.ACTIVE_TERMINATED,
        (SegmentState.SEALED, LogState.OPEN): FindingKind.SEALED_OPEN,
        (SegmentState.SEALED, LogState.MISSING): None if log.is_drained else FindingKind.SEALED_MISSING,
    }.get((log.state, state))


def _cursor_differences(of_log: Finding, seen: PlaneView, books: ExpectedLogs) -> list[Finding]:
    report = seen.reports.get(of_log.backing_topic)
    if report is None or report.state is not LogState.OPEN:
        return []  # The log was missing when the logs were described first.
    existing = report.cursors.keys()
    expected = books.subscriptions.keys() & seen.books.subscriptions.keys()
    recorded = books.subscriptions.keys() | seen.books.subscriptions.keys() | books.deleting_subscriptions
    return [
        replace(of_log, kind=kind, subscription=name)
        for kind, names in (
            (FindingKind.CURSOR_MISSING, expected - existing),
            (FindingKind.CURSOR_UNRECORDED, existing - recorded),
        )
        for name in sorted(names)
    ]
