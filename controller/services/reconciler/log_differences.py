"""Differences between the metadata and the data plane: their kinds, and the comparison.

Pure; performs no I/O. The caller passes the listed logs, the descriptions of single logs, and the metadata
before and after. A log is compared only if the metadata before and after shows it unchanged and idle. `logs_ahead`
detects logs that are ahead of the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from controller.dataplane.base import MISSING_LOG, LogReport, LogState
from controller.dataplane.log_deletion_rule import reason_to_keep
from controller.domain.log_origin import NOT_RESERVED, Ownership
from controller.domain.segment import SegmentState, segment_of_log
from controller.store.topics.backing_logs import BackingLog, ExpectedLogs


class FindingKind(StrEnum):
    """Kind of a difference between the metadata and the data plane, with its remedy."""

    LOGS_AHEAD = "logs-ahead"
    """The logs show reshapes or prunes that the journal lacks. The layout is rebuilt from the logs, or the topic is
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
    """Ancestors of the segment are unread, and nothing holds its messages back from standard consumers. The
    gate keeper closes the gate.
    """
    GATE_SHUT = "gate-shut"
    """Every ancestor is read, and the data plane still holds the messages back. The gate keeper opens the gate.
    """
    GATE_BREACHED = "gate-breached"
    """The gate is closed, but a consumer has acknowledged the barrier. Set the crypto failure action of the
    application's consumers to FAIL.
    """
    CURSOR_UNRECORDED = "cursor-unrecorded"
    """An application, or a delayed call, created the cursor. It is reported and kept, and skips the barrier of a gate."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. `error` is the reason why its remedy failed or was not tried; a later run finds the difference
    again. `operation_id` is the operation that repairs the segment. Both are None otherwise.
    """

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
    """Reports by name: of every log of a segment in `metadata`, and of listed logs if they were described."""
    metadata: ExpectedLogs
    """The metadata before single logs were described. Logs that changed since are not compared."""

    def state(self, log: BackingLog) -> LogState:
        """Return the state of a segment's log."""
        return self.reports.get(log.backing_topic, MISSING_LOG).state


def compare(
    topic: str,
    plane_view: PlaneView,
    metadata: ExpectedLogs,
    ownership: Mapping[str, Ownership],
) -> list[Finding]:
    """Return all differences between the data plane and the metadata; empty if they agree. The caller has read
    `metadata` under the topic's lock, after everything in `plane_view`. `ownership` has, by name, the journal's
    records of the listed logs that the metadata does not expect; a log without an entry counts as not reserved.

    If unread logs are missing and no log of the topic exists, the data plane seems to be another cluster. Each
    difference of an expected log then has an `error`, which tells the caller not to repair it. Findings about
    unexpected logs have no error.
    """
    differences = _differences(topic, plane_view, metadata)
    if _is_elsewhere(plane_view, differences):
        count = len(plane_view.metadata.logs)
        error = (
            f"none of the {count} logs of {topic} is on its data plane, so the difference is not repaired: check that the "
            "address names the cluster of the logs; if the logs are lost, delete the topic"
        )
        differences = [replace(difference, error=error) for difference in differences]
    return [*_unexpected_logs(topic, plane_view, metadata, ownership), *differences]


def _is_elsewhere(plane_view: PlaneView, differences: Sequence[Finding]) -> bool:
    """Return True if the data plane seems to be another cluster: unread logs are missing, and no log exists.

    Creating the active logs again would be the first step to counting the others as read to their end.
    """
    loses_data = any(difference.kind is FindingKind.SEALED_MISSING for difference in differences)
    return loses_data and all(plane_view.state(log) is LogState.MISSING for log in plane_view.metadata.logs)


def _unexpected_logs(
    topic: str, plane_view: PlaneView, metadata: ExpectedLogs, ownership: Mapping[str, Ownership]
) -> list[Finding]:
    """Return a finding for each listed log that the metadata does not expect: ORPHAN_LOG if the log may be deleted,
    otherwise UNMANAGED_LOG, with the reason to keep the log. A listed log without a report in `plane_view` counts as
    missing. A name that is not the name of a segment's log has no segment id.
    """
    findings = []
    for name in plane_view.listed:
        if name in metadata.names:
            continue
        segment = segment_of_log(name)
        segment_id = None if segment is None else segment[1]
        report = plane_view.reports.get(name, MISSING_LOG)
        owner = ownership.get(name, NOT_RESERVED)
        reason_to_keep_log = reason_to_keep(report, owner)
        kind = FindingKind.ORPHAN_LOG if reason_to_keep_log is None else FindingKind.UNMANAGED_LOG
        findings.append(Finding(kind, topic, name, segment_id, reason=reason_to_keep_log, report=report))
    return findings


def _differences(topic: str, plane_view: PlaneView, metadata: ExpectedLogs) -> list[Finding]:
    """Return the differences of the topic's segment logs. Empty for a topic that is not live. A log is compared only
    if its metadata was the same before and after the log was described, and no operation is working on it.

    A log whose state differs from the state of its segment has one finding. Otherwise, a sealed segment has findings
    about recorded drains that are wrong, but only if the topic is unverified; and any segment has findings about its
    cursors, but only if no subscription of the topic was changing.
    """
    if metadata.topic_state != "live":
        return []
    logs_before = {log.segment_id: log for log in plane_view.metadata.logs}
    findings = []
    for log in metadata.logs:
        if logs_before.get(log.segment_id) != log or log.is_busy:
            continue
        finding = Finding(FindingKind.ACTIVE_MISSING, topic, log.backing_topic, log.segment_id)
        kind = _kind_of_difference(log, plane_view.state(log))
        if kind is not None:
            findings.append(replace(finding, kind=kind))
            continue
        if log.state is SegmentState.SEALED and not metadata.is_verified:
            findings += _unread_again(finding, log, plane_view)
        if not (metadata.changes_subscriptions or plane_view.metadata.changes_subscriptions):
            findings += _cursor_differences(finding, log, plane_view, metadata)
    return findings


def _unread_again(log_finding: Finding, log: BackingLog, plane_view: PlaneView) -> list[Finding]:
    """Return an UNREAD_AGAIN finding for each subscription that is recorded to have drained the segment of this log,
    but has unread messages there: the subscription was moved back in a time that the journal lost. A subscription
    without a cursor on the log has no finding. `log_finding` gives the topic, log and segment of the findings.
    """
    cursors = plane_view.reports.get(log.backing_topic, MISSING_LOG).cursors
    return [
        replace(log_finding, kind=FindingKind.UNREAD_AGAIN, subscription=name)
        for name in sorted(log.drained_by)
        if name in cursors and cursors[name].unread > 0
    ]


def _kind_of_difference(log: BackingLog, state: LogState) -> FindingKind | None:
    """Return the kind of the difference between the segment's state and its log's state; None if they agree."""
    return {
        (SegmentState.ACTIVE, LogState.MISSING): FindingKind.ACTIVE_MISSING,
        (SegmentState.ACTIVE, LogState.TERMINATED): FindingKind.ACTIVE_TERMINATED,
        (SegmentState.SEALED, LogState.OPEN): FindingKind.SEALED_OPEN,
        (SegmentState.SEALED, LogState.MISSING): None if log.is_drained else FindingKind.SEALED_MISSING,
    }.get((log.state, state))


def _cursor_differences(
    log_finding: Finding, log: BackingLog, plane_view: PlaneView, metadata: ExpectedLogs
) -> list[Finding]:
    """Return a CURSOR_MISSING finding for each subscription that was live both before and after the log was described,
    has to read the segment, and has no cursor on the log. For an active segment, also return a CURSOR_UNRECORDED
    finding for each cursor whose subscription was live neither before nor after, and is not being deleted. Empty for a
    missing log. `log_finding` gives the topic, log and segment of the findings.
    """
    if plane_view.state(log) is LogState.MISSING:
        return []
    existing = plane_view.reports[log.backing_topic].cursors.keys()
    before = plane_view.metadata.subscriptions.keys()
    recorded = metadata.subscriptions.keys() | before | metadata.deleting_subscriptions
    unrecorded = existing - recorded if log.state is SegmentState.ACTIVE else set()
    return [
        replace(log_finding, kind=kind, subscription=name)
        for kind, names in (
            (FindingKind.CURSOR_MISSING, before & {*metadata.expected_on(log)} - existing),
            (FindingKind.CURSOR_UNRECORDED, unrecorded),
        )
        for name in sorted(names)
    ]
