"""Detects whether the logs of a topic are ahead of the journal, and then rebuilds the layout from the logs or holds the
topic.

A journal is behind its logs after a restore or an asynchronous fail-over. The logs record the operations that
created them, so the layout, the subscriptions and their positions can be read from the data plane. Only
`recover_or_hold` writes, in the caller's transaction; the other functions perform no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from controller import telemetry
from controller.dataplane.base import MISSING_LOG, DataPlane, LogReport, LogState
from controller.domain.layout import SegmentLayout
from controller.domain.log_origin import Ownership
from controller.domain.next_step import ABORTABLE
from controller.domain.recovery import RecoveryPlan, SegmentLog, plan_recovery
from controller.domain.segment import SegmentState, segment_of_log
from controller.services.reconciler.log_differences import Finding, PlaneView
from controller.store.topics import held_topics, recovered_layout
from controller.store.topics.backing_logs import BackingLog, ExpectedLogs
from controller.store.topics.recovered_layout import RecoveredLayout
from controller.store.topics.subscriptions import SubscriptionKind
from controller.store.topics.topics import TopicRow

log = telemetry.get_logger(__name__)

Owners = Mapping[str, Ownership]
"""The journal's records of logs without a segment, by name."""


def may_be_ahead(plane_view: PlaneView, metadata: ExpectedLogs, owners: Owners) -> bool:
    """Return True if the logs must be compared with the layout: the topic is unverified or held, or a log with an
    origin exists that no segment and no live operation of the journal has (`_unrecorded_logs`). False for a topic
    that is being deleted or is deleted.
    """
    if metadata.topic_state not in ("creating", "live"):
        return False
    return (
        not metadata.is_verified
        or metadata.held_reason is not None
        or bool(_unrecorded_logs(plane_view, metadata, owners))
    )


def plan(
    plane_view: PlaneView, metadata: ExpectedLogs, owners: Owners, layout: SegmentLayout, now: int
) -> RecoveryPlan:
    """Return the plan of a recovery: the layout that the logs show, and whether it differs from `layout`, the layout
    of the journal (`is_needed`). If the records of the logs do not determine a layout, the plan's `problems` say why.
    Writes nothing. The caller has read `metadata` and `layout` under the topic's lock, after `plane_view`. `owners`
    are the journal's records of the listed logs that no segment has. `now`, in milliseconds since the Unix epoch, is
    the time of the recovery.
    """
    logs = {log.segment_id: _log_of(log, layout, plane_view) for log in metadata.logs}
    unrecorded = _unrecorded_logs(plane_view, metadata, owners)
    reserved = _recorded_logs(plane_view, metadata.reserved)
    if not unrecorded:
        # The children of an operation before its fence are unused; past the fence, the operation's runner
        # continues.
        reserved = [
            log for log in _of_used_operations(reserved) if metadata.reserved[log.backing_topic] in ABORTABLE
        ]
    ids = [
        named_segment[1] for name in plane_view.listed if (named_segment := segment_of_log(name)) is not None
    ]
    missing = _missing_segments(plane_view, metadata, has_others=bool(unrecorded))
    return plan_recovery(
        layout, logs, [*unrecorded, *reserved], now, highest_id=max(ids, default=-1), missing=missing
    )


def _missing_segments(plane_view: PlaneView, metadata: ExpectedLogs, *, has_others: bool) -> list[int]:
    """Return the ids of the segments whose logs do not exist, except those that are in live operations or changed after
    the view. Empty for a verified topic. Empty also if none of the logs exists, unless the topic has other logs
    (`has_others`): the data plane may be another cluster.
    """
    missing = [
        log
        for log in metadata.logs
        if plane_view.state(log) is LogState.MISSING and log.backing_topic not in plane_view.listed
    ]
    if metadata.is_verified or (len(missing) == len(metadata.logs) and not has_others):
        return []
    return [log.segment_id for log in missing if not log.is_busy and log in plane_view.metadata.logs]


def _unrecorded_logs(plane_view: PlaneView, metadata: ExpectedLogs, owners: Owners) -> list[SegmentLog]:
    """Return the listed logs in `owners` that carry the record of an operation (an origin), but belong to no segment,
    past or present, and to no live operation of the journal. `owners` has the journal's records of the listed logs
    that the metadata does not expect, by name. A log that is queued for deletion is left out, unless the log itself,
    or another such log of the same operation, has carried messages.
    """
    names = (
        name
        for name, owner in owners.items()
        if not owner.was_active and name not in metadata.reserved and name in plane_view.listed
    )
    recorded = _recorded_logs(plane_view, names)
    used = {*_of_used_operations(recorded)}
    return [log for log in recorded if log in used or log.backing_topic not in metadata.pending_deletions]


def _of_used_operations(logs: Sequence[SegmentLog]) -> list[SegmentLog]:
    """Return the logs of operations of which at least one log has carried messages: the children of an
    operation take over together.
    """
    tokens = {log.token for log in logs if log.has_carried_messages}
    return [log for log in logs if log.token in tokens]


def _recorded_logs(plane_view: PlaneView, names: Iterable[str]) -> list[SegmentLog]:
    """Return the logs that have the record of the operation that created them, ordered by name."""
    reports = ((name, plane_view.reports.get(name, MISSING_LOG)) for name in sorted(names))
    return [log for name, report in reports if (log := _recorded_log(name, report)) is not None]


def recovered(plane_view: PlaneView, metadata: ExpectedLogs, planned: RecoveryPlan) -> RecoveredLayout:
    """Return the plan together with the subscriptions and drained segments that the data plane shows. Writes nothing.
    A subscription is new if every active log of the planned layout has its cursor and the journal does not know it,
    not even as being deleted. A subscription with a name that the journal cannot record, such as one with spaces, stays
    a subscription of the applications that created it. A new subscription is a QUEUE if one of its cursors is that of a queue, otherwise a
    STREAM.

    `marks` of the result say, by subscription and segment id, whether the subscription has read a sealed segment to
    its end. There is a mark for each new subscription, and for each recorded subscription that has a cursor on the
    segment's log. A missing log counts as read by all these subscriptions. A log without a cursor counts as read by a
    new subscription, which was created after the seal and from latest. Without active segments no subscription is new.
    """
    names = {log.segment_id: log.backing_topic for log in metadata.logs}
    names |= {segment_id: log.backing_topic for segment_id, log in planned.added.items()}
    reports = {segment_id: plane_view.reports.get(name, MISSING_LOG) for segment_id, name in names.items()}
    active = [reports[segment.segment_id] for segment in planned.layout.active]
    everywhere = set.intersection(*({*report.cursors} for report in active)) if active else set()
    recordable = {name for name in everywhere if name.split() == [name]}
    new_subscriptions = recordable - metadata.subscriptions.keys() - metadata.deleting_subscriptions
    kinds = {name: _kind(reports, name) for name in new_subscriptions}
    marks = {
        (name, segment_id): _is_read(reports[segment_id], name)
        for segment_id, segment in planned.layout.segments.items()
        if segment.state is SegmentState.SEALED
        for name in (*metadata.subscriptions, *new_subscriptions)
        if name in new_subscriptions
        or reports[segment_id].state is LogState.MISSING
        or name in reports[segment_id].cursors
    }
    seals = (s.sealed_epoch for s in planned.layout.segments.values() if s.sealed_epoch is not None)
    return RecoveredLayout(planned, kinds, marks, min(seals, default=planned.layout.epoch + 1) - 1)


def describe(planned: RecoveryPlan) -> str:
    """Return one sentence about what the logs show. The caller has checked that `planned` is needed."""
    if planned.problems:
        return f"the logs are ahead of the journal, but their records are not sufficient to rebuild the layout: {'; '.join(planned.problems)}"
    evidence = []
    if planned.added or planned.sealed:
        log_names = ", ".join(log.backing_topic for _, log in sorted(planned.added.items())) or "no log"
        evidence.append(f"{log_names} replaced {', '.join(map(str, planned.sealed)) or 'no segment'}")
    if planned.pruned:
        evidence.append(f"the logs of sealed segment(s) {', '.join(map(str, planned.pruned))} were deleted")
    return f"the logs are ahead of the journal: {'; '.join(evidence)}"


def recover_or_hold(
    tx: Connection,
    topic: TopicRow,
    plane: DataPlane,
    recovered: RecoveredLayout,
    finding: Finding,
    actor: str,
    *,
    is_last_round: bool,
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Rebuild the layout from the logs, or hold the topic, in the caller's transaction. The caller holds the lock of
    the topic row. Return findings, and logs that the caller must terminate before the next round. There are three
    cases.

    If there is an obstacle, the topic is held, and the finding is returned with the obstacle as its `error`. The
    obstacles are: the plan has problems, because the logs' records do not determine a layout; a runner may still work
    on the topic; or logs must be terminated first and `is_last_round` is True. The reason of the hold includes the
    obstacle. Otherwise, if logs must be terminated first, the topic is held, and these logs are returned without a
    finding. Otherwise the layout is rebuilt, the hold is released, and the finding is returned without an error.

    A rebuild is logged. A hold is logged in the first case only, and only if the topic was not held for the same
    reason before. Raises the errors of `recovered_layout.commit`, after which the caller rolls back.
    """
    planned, evidence = recovered.plan, finding.reason or ""
    busy_reason = recovered_layout.why_not_idle(tx, topic, call_timeout_seconds=plane.call_timeout_seconds)
    obstacle = evidence if planned.problems else busy_reason
    if obstacle is None and is_last_round and planned.to_terminate:
        obstacle = _describe_open(planned.to_terminate)
    if obstacle is not None:
        reason = evidence if planned.problems else f"{evidence}; {obstacle}"
        if held_topics.hold(tx, topic.topic_id, reason):
            log.warning("topic held", topic=topic.name, reason=reason)
        return (replace(finding, error=obstacle),), ()
    if planned.to_terminate:
        # A reason with the obstacle of an earlier run stays, so that each run does not log the obstacle again.
        if not (held_topics.held_reason(tx, topic.topic_id) or "").startswith(evidence):
            held_topics.hold(tx, topic.topic_id, evidence)
        return (), planned.to_terminate
    epoch = recovered_layout.commit(tx, topic, recovered, actor=actor, reason=evidence)
    log.warning("layout recovered from the logs", topic=topic.name, epoch=epoch, reason=evidence)
    return (finding,), ()


def _describe_open(logs: Sequence[str]) -> str:
    """Return one sentence about logs that are still open although they were to be terminated."""
    return (
        f"{', '.join(logs)} still accepts appends and could not be terminated, because another session has it "
        "locked; end the session that writes to it"
    )


def _log_of(backing_log: BackingLog, layout: SegmentLayout, plane_view: PlaneView) -> SegmentLog:
    """Return the log of a segment of the layout as the data plane shows it. A log without a report counts as
    missing, and a missing log as closed.
    """
    segment = layout.segments[backing_log.segment_id]
    report = plane_view.reports.get(backing_log.backing_topic, MISSING_LOG)
    return SegmentLog(
        backing_log.segment_id,
        segment.hash_range,
        backing_log.backing_topic,
        is_closed=report.state is not LogState.OPEN,
        has_carried_messages=report.has_carried_messages,
        epoch=0 if report.origin is None else report.origin.epoch,
    )


def _recorded_log(name: str, report: LogReport) -> SegmentLog | None:
    """Return the log with the record that its operation stored with it. None if the log has no such record, or if
    `name` is not the name of a segment's log.
    """
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
    """Return QUEUE if a cursor of the subscription is that of a queue, otherwise STREAM."""
    is_queue = any(report.cursors[name].is_queue for report in reports.values() if name in report.cursors)
    return SubscriptionKind.QUEUE if is_queue else SubscriptionKind.STREAM


def _is_read(report: LogReport, name: str) -> bool:
    """Return True if the log has no cursor of the subscription `name`, or is terminated without unread messages of the
    subscription. A missing log has no cursors.
    """
    cursor = report.cursors.get(name)
    return cursor is None or (report.state is LogState.TERMINATED and cursor.unread == 0)
