"""Finds out whether the logs of a topic are ahead of the journal, and rebuilds the layout from the logs.

Pure. A journal is behind its logs after a restore or an asynchronous fail-over. The logs record
the operations that created them, so the layout, the subscriptions and their positions can be read from the data plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from controller.dataplane.base import MISSING_LOG, LogReport, LogState
from controller.domain.layout import SegmentLayout
from controller.domain.log_origin import Ownership
from controller.domain.operation import ABORTABLE
from controller.domain.recovery import RecoveryPlan, SegmentLog, plan_recovery
from controller.domain.segment import SegmentState, segment_of_log
from controller.services.reconciler.findings import PlaneView
from controller.store.topics.backing_logs import BackingLog, Books
from controller.store.topics.recovery import RecoveredLayout
from controller.store.topics.subscriptions import SubscriptionKind

Owners = Mapping[str, Ownership]
"""The journal's records of the logs that no segment has, by name."""


def may_be_ahead(seen: PlaneView, books: Books, owners: Owners) -> bool:
    """Return True if the logs have to be compared with the layout: the topic is unverified or held, or a log exists whose
    operation the journal does not have.
    """
    if books.topic_state not in ("creating", "live"):
        return False
    return not books.is_verified or books.held_reason is not None or bool(_strangers(seen, books, owners))


def plan(seen: PlaneView, books: Books, owners: Owners, layout: SegmentLayout, now: int) -> RecoveryPlan:
    """Return the layout that the logs show. `books` and `layout` were read under the topic's lock."""
    logs = {one.segment_id: _log_of(one, layout, seen) for one in books.logs}
    strangers = _strangers(seen, books, owners)
    reserved = _recorded_logs(seen, books.reserved)
    if not strangers:
        # An operation before its fence has unused children; past the fence its runner goes forward.
        reserved = [one for one in _of_used(reserved) if books.reserved[one.backing_topic] in ABORTABLE]
    ids = [found[1] for name in seen.listed if (found := segment_of_log(name)) is not None]
    return plan_recovery(layout, logs, [*strangers, *reserved], now, highest_id=max(ids, default=-1))


def _strangers(seen: PlaneView, books: Books, owners: Owners) -> list[SegmentLog]:
    """Logs with an origin that belong to no segment, past or present, and to no live operation. A log that is being deleted
    counts if its operation's logs were used.
    """
    names = (
        name
        for name, owner in owners.items()
        if not owner.was_active and name not in books.reserved and name in seen.listed
    )
    found = _recorded_logs(seen, names)
    used = {*_of_used(found)}
    return [one for one in found if one in used or one.backing_topic not in books.tombstoned]


def _of_used(logs: Sequence[SegmentLog]) -> list[SegmentLog]:
    """Logs of the operations of which a log has carried messages: the children of an operation take over together."""
    tokens = {one.token for one in logs if one.has_carried_messages}
    return [one for one in logs if one.token in tokens]


def _recorded_logs(seen: PlaneView, names: Iterable[str]) -> list[SegmentLog]:
    reports = ((name, seen.reports.get(name, MISSING_LOG)) for name in sorted(names))
    return [log for name, report in reports if (log := _found(name, report)) is not None]


def recovered(seen: PlaneView, books: Books, planned: RecoveryPlan) -> RecoveredLayout:
    """Return the plan with the subscriptions and the positions that the data plane has."""
    names = {one.segment_id: one.backing_topic for one in books.logs}
    names |= {i: log.backing_topic for i, log in planned.added.items()}
    reports = {i: seen.reports.get(name, MISSING_LOG) for i, name in names.items()}
    active = [reports[one.segment_id] for one in planned.layout.active]
    everywhere = set.intersection(*({*one.cursors} for one in active)) if active else set()
    new = everywhere - books.subscriptions.keys() - books.deleting_subscriptions
    kinds = {name: _kind(reports, name) for name in new}
    marks = {
        (name, i): _is_read(reports[i], name)
        for i, segment in planned.layout.segments.items()
        if segment.state is SegmentState.SEALED
        for name in (*books.subscriptions, *new)
        if reports[i].state is LogState.MISSING or name in reports[i].cursors
    }
    return RecoveredLayout(planned, kinds, marks, reads_after_epoch=books.epoch)


def describe(planned: RecoveryPlan) -> str:
    """Return one sentence about what the logs show."""
    if planned.problems:
        return f"the logs are ahead of the journal, and do not tell enough: {'; '.join(planned.problems)}"
    names = ", ".join(log.backing_topic for _, log in sorted(planned.added.items())) or "no log"
    sealed = ", ".join(map(str, planned.sealed)) or "no segment"
    return f"the logs are ahead of the journal: {names} replaced {sealed}"


def _log_of(log: BackingLog, layout: SegmentLayout, seen: PlaneView) -> SegmentLog:
    segment = layout.segments[log.segment_id]
    report = seen.reports.get(log.backing_topic, MISSING_LOG)
    return SegmentLog(
        log.segment_id,
        segment.hash_range,
        log.backing_topic,
        is_closed=report.state is not LogState.OPEN,
        has_carried_messages=report.has_carried_messages,
        epoch=0 if report.origin is None else report.origin.epoch,
    )


def _found(name: str, report: LogReport) -> SegmentLog | None:
    """The log with what its operation stored with it. None without an origin: the log says nothing of itself."""
    origin, segment = report.origin, segment_of_log(name)
    if origin is None or segment is None:
        return None
    hash_range, segment_id = segment
    return SegmentLog(
        segment_id,
        hash_range,
        name,
        is_closed=report.state is not LogState.OPEN,
        has_carried_messages=report.has_carried_messages,
        token=origin.token,
        epoch=origin.epoch,
        parent_ids=origin.parent_ids,
        bucket_splits=origin.bucket_splits,
    )


def _kind(reports: Mapping[int, LogReport], name: str) -> SubscriptionKind:
    is_queue = any(one.cursors[name].is_queue for one in reports.values() if name in one.cursors)
    return SubscriptionKind.QUEUE if is_queue else SubscriptionKind.STREAM


def _is_read(report: LogReport, name: str) -> bool:
    if report.state is LogState.MISSING:
        return True
    return report.state is LogState.TERMINATED and report.cursors[name].unread == 0
