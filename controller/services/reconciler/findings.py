"""What can be wrong between the books and the data plane: kinds of findings, and the comparison itself.

Pure: it is given what was listed, what was seen of single logs, and the books before and after. A log is judged only if
the books before and after show it unchanged and idle. That logs are ahead of the journal is found in `ahead`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from controller.dataplane.base import MISSING_LOG, LogReport, LogState
from controller.dataplane.deletion_proof import reason_to_keep
from controller.domain.log_origin import NOT_RESERVED, Ownership
from controller.domain.segment import SegmentState, segment_of_log
from controller.store.topics.backing_logs import BackingLog, Books


class FindingKind(StrEnum):
    """What can be wrong between the books and the data plane, and what is done about it."""

    LOGS_AHEAD = "logs-ahead"
    """The logs show reshapes that the journal lacks: the layout is rebuilt from the logs, or the topic is held."""
    ORPHAN_LOG = "orphan-log"
    """An operation of this journal created the log, and no segment needs the log: deleted through a tombstone."""
    FOREIGN_LOG = "foreign-log"
    """Another journal or program created the log, or its messages are unread: listed, kept."""
    ACTIVE_MISSING = "active-missing"
    """Created again with the recorded subscriptions and those found on its parents."""
    ACTIVE_TERMINATED = "active-terminated"
    """Healed by a journalled reshape 1 → 1."""
    SEALED_OPEN = "sealed-open"
    """Terminated."""
    SEALED_MISSING = "sealed-missing"
    """Its data is gone: counted as drained, so that its children are handed out and it can be pruned."""
    UNREAD_AGAIN = "unread-again"
    """Recorded as read to its end, while the data plane has unread messages: the record is withdrawn."""
    CURSOR_MISSING = "cursor-missing"
    """Created at earliest."""
    GATE_OPEN = "gate-open"
    """Ancestors of the segment are unread, and nothing holds its messages back from standard consumers: closed by the gate keeper."""
    GATE_SHUT = "gate-shut"
    """Every ancestor is read, and the data plane still holds the messages back: opened by the gate keeper."""
    GATE_BREACHED = "gate-breached"
    """Closed, but a consumer has acknowledged the barrier: set the crypto failure action of the application's consumers to FAIL."""
    CURSOR_UNRECORDED = "cursor-unrecorded"
    """An application's own, or left by a call held up on its way: reported, left alone."""

    @property
    def has_remedy(self) -> bool:
        """Whether a run puts it right; the others are for a person to judge."""
        return self not in (
            FindingKind.FOREIGN_LOG,
            FindingKind.CURSOR_UNRECORDED,
            FindingKind.GATE_BREACHED,
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. `error` says why its remedy failed; a later run finds it again."""

    kind: FindingKind
    topic: str
    backing_topic: str
    segment_id: int | None = None
    subscription: str | None = None
    operation_id: int | None = None
    error: str | None = None
    reason: str | None = None
    """Evidence for the finding, where the kind does not say it all."""
    report: LogReport | None = field(default=None, repr=False, compare=False)
    """The log itself, of a foreign log."""


@dataclass(frozen=True, slots=True)
class PlaneView:
    """What the data plane showed before the books were locked."""

    listed: tuple[str, ...]
    reports: Mapping[str, LogReport]
    """By name, of every log that `books` account for as a segment, and of listed logs where they were asked for."""
    books: Books
    """As they were before the looks at single logs. What changed since is not judged."""

    def state(self, log: BackingLog) -> LogState:
        """Return the state of a segment's log."""
        return self.reports.get(log.backing_topic, MISSING_LOG).state


def compare(
    topic: str,
    seen: PlaneView,
    books: Books,
    ownership: Mapping[str, Ownership],
) -> list[Finding]:
    """Every difference. `books` were read under the topic's lock, after everything in `seen`."""
    differences = _differences(topic, seen, books)
    if _is_elsewhere(seen, differences):
        count = len(seen.books.logs)
        why = (
            f"none of the {count} logs of {topic} is on its data plane, so nothing is concluded from that: does the "
            "address name the cluster they are on? If they are truly lost, delete the topic"
        )
        differences = [replace(one, error=why) for one in differences]
    return [*_strays(topic, seen, books, ownership), *differences]


def _is_elsewhere(seen: PlaneView, differences: Sequence[Finding]) -> bool:
    """Whether this looks like another cluster: unread logs are missing, and not one log is there.

    Making the active ones anew would be the first step to counting the others as read to their end.
    """
    loses_data = any(one.kind is FindingKind.SEALED_MISSING for one in differences)
    return loses_data and all(seen.state(one) is LogState.MISSING for one in seen.books.logs)


def _strays(topic: str, seen: PlaneView, books: Books, ownership: Mapping[str, Ownership]) -> list[Finding]:
    """Logs that the books do not account for: orphans if they may be deleted, otherwise foreign logs."""
    found = []
    for name in seen.listed:
        if name in books.names:
            continue
        segment = segment_of_log(name)
        segment_id = None if segment is None else segment[1]
        report = seen.reports.get(name, MISSING_LOG)
        own = ownership.get(name, NOT_RESERVED)
        why = reason_to_keep(report, own)
        kind = FindingKind.ORPHAN_LOG if why is None else FindingKind.FOREIGN_LOG
        found.append(Finding(kind, topic, name, segment_id, reason=why, report=report))
    return found


def _differences(topic: str, seen: PlaneView, books: Books) -> list[Finding]:
    """Differences of every log that the books show unchanged and idle before and after it was looked at."""
    if books.topic_state != "live":
        return []
    before = {one.segment_id: one for one in seen.books.logs}
    found = []
    for one in books.logs:
        if before.get(one.segment_id) != one or one.is_busy:
            continue
        finding = Finding(FindingKind.ACTIVE_MISSING, topic, one.backing_topic, one.segment_id)
        kind = _kind_of_difference(one, seen.state(one))
        if kind is not None:
            found.append(replace(finding, kind=kind))
        elif one.state is SegmentState.SEALED:
            found += [] if books.is_verified else _unread_again(finding, one, seen)
        elif not (books.changes_subscriptions or seen.books.changes_subscriptions):
            found += _cursor_differences(finding, seen, books)
    return found


def _unread_again(of_log: Finding, log: BackingLog, seen: PlaneView) -> list[Finding]:
    """Subscriptions that were moved back in a time that the journal lost."""
    cursors = seen.reports.get(log.backing_topic, MISSING_LOG).cursors
    return [
        replace(of_log, kind=FindingKind.UNREAD_AGAIN, subscription=name)
        for name in sorted(log.drained_by)
        if name in cursors and cursors[name].unread > 0
    ]


def _kind_of_difference(one: BackingLog, state: LogState) -> FindingKind | None:
    return {
        (SegmentState.ACTIVE, LogState.MISSING): FindingKind.ACTIVE_MISSING,
        (SegmentState.ACTIVE, LogState.TERMINATED): FindingKind.ACTIVE_TERMINATED,
        (SegmentState.SEALED, LogState.OPEN): FindingKind.SEALED_OPEN,
        (SegmentState.SEALED, LogState.MISSING): None if one.is_drained else FindingKind.SEALED_MISSING,
    }.get((one.state, state))


def _cursor_differences(of_log: Finding, seen: PlaneView, books: Books) -> list[Finding]:
    report = seen.reports.get(of_log.backing_topic)
    if report is None or report.state is not LogState.OPEN:
        return []  # the log was missing at the first look
    there = report.cursors.keys()
    wanted = books.subscriptions.keys() & seen.books.subscriptions.keys()
    recorded = books.subscriptions.keys() | seen.books.subscriptions.keys() | books.deleting_subscriptions
    return [
        replace(of_log, kind=kind, subscription=name)
        for kind, names in (
            (FindingKind.CURSOR_MISSING, wanted - there),
            (FindingKind.CURSOR_UNRECORDED, there - recorded),
        )
        for name in sorted(names)
    ]
