"""Reconciles one topic or many: describes the logs, locks and compares the metadata, and repairs what can be
repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Connection

from controller import telemetry
from controller.clock import to_ms
from controller.dataplane.base import DataPlane, LogReport, LogState, SetWiseDataPlane
from controller.dataplane.gates import GatedDataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.dataplane.registry import configured
from controller.domain.errors import CleaveError, DataPlaneUnavailable, StoreUnavailable, Unsupported
from controller.domain.log_origin import LogOrigin
from controller.domain.operation import Origin
from controller.domain.reshape import plan_heal
from controller.services.reconciler import logs_ahead
from controller.services.reconciler.gates import reconcile_gates
from controller.services.reconciler.log_differences import Finding, FindingKind, PlaneView, compare
from controller.services.reconciler.topic_by_topic import compare_each
from controller.store.journal import deletion_entries, reshape_intents
from controller.store.journal.operations import Request
from controller.store.journal.reshape_intents import ReshapeDraft
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from controller.store.topics import (
    backing_logs,
    drains,
    gates,
    held_topics,
    layouts,
    topics,
    unmanaged_logs,
)
from controller.store.topics.backing_logs import ExpectedLogs
from controller.store.topics.unmanaged_logs import UnmanagedLog

log = telemetry.get_logger(__name__)

Item = TypeVar("Item")

TOPICS_PER_VIEW = 100
"""Number of topics whose logs are described together. If this fails, each of them is reconciled separately.
"""
LOGS_PER_CALL = 200
"""Maximum number of logs that a data plane can describe within its time limit for one call."""
ROUNDS = 4
"""Maximum number of rounds. A recovery takes up to three: logs are terminated, the layout is rebuilt, and the
topic is compared again.
"""


def reconcile_topics(
    store: Store,
    planes: Mapping[str, DataPlane],
    *,
    limit: int = 500,
    after: int = 0,
    shards: Shards | None = None,
    dry_run: bool = False,
) -> tuple[list[Finding], int | None]:
    """Compare the logs and gates of up to `limit` topics with an id above `after`, also topics that were deleted in the
    last 24 hours, and repair their differences; a dry run only lists them. Return the findings, and the id after which
    to continue (None: fewer than `limit` topics were left). `shards` restricts the topics; None: all.

    All topics are first described together without a lock; those that agree are recorded as verified. Topics with a
    difference are then reconciled one by one. If a topic cannot be compared, for example because its data plane does
    not answer, the error is logged and the topic is skipped. Only errors of the store are raised.
    """
    with store.transaction() as tx:
        topic_ids = backing_logs.comparable_topics(tx, limit=limit, after=after, shards=shards)
    findings = _compare_all(store, planes, topic_ids, dry_run=dry_run)
    findings += reconcile_gates(store, planes, topic_ids, dry_run=dry_run)
    return findings, topic_ids[-1] if len(topic_ids) == limit else None


def verify_topics(
    store: Store,
    planes: Mapping[str, DataPlane],
    *,
    limit: int = TOPICS_PER_VIEW,
    shards: Shards | None = None,
) -> tuple[int, int]:
    """Compare the logs of up to `limit` unverified topics, which exist after a restart, a promotion or a restore of the
    database, and repair their differences. Return the number of these topics, and how many of them are verified and not
    held afterwards. `shards` restricts the topics; None: all. Only errors of the store are raised.
    """
    with store.single_statement() as tx:
        topic_ids = held_topics.unverified_topics(tx, limit=limit, shards=shards)
    if not topic_ids:
        return 0, 0
    _compare_all(store, planes, topic_ids, dry_run=False)
    with store.single_statement() as tx:
        return len(topic_ids), len(topic_ids) - held_topics.count_unverified(tx, topic_ids)


def _compare_all(
    store: Store, planes: Mapping[str, DataPlane], topic_ids: Sequence[int], *, dry_run: bool
) -> list[Finding]:
    """Reconcile the topics that differ, and return the findings; a dry run changes nothing. A topic whose
    comparison fails is logged and skipped. After an unexpected error it is also recorded in the view
    `inspect.set_aside`. Only errors of the store are raised.
    """
    return compare_each(
        store,
        _topics_to_reconcile(store, planes, topic_ids, dry_run=dry_run),
        lambda topic_id: _reconcile_logs(store, planes, topic_id, dry_run=dry_run),
        failure="topic not reconciled",
        dry_run=dry_run,
    )


def _topics_to_reconcile(
    store: Store, planes: Mapping[str, DataPlane], topic_ids: Sequence[int], *, dry_run: bool
) -> list[int]:
    """Return the sorted ids of the topics that differ according to one common view, and of the topics whose logs could
    not be described or whose data plane is not configured here. The other topics are recorded as verified and without
    unmanaged logs, unless this is a dry run. Topics whose broker keeps the layout are only recorded.
    """
    with store.transaction() as tx:
        rows = topics.get_topics(tx, topic_ids)
    differing_ids: list[int] = []
    for plane_name in sorted({row.data_plane for row in rows}):
        plane, agreeing_ids = planes.get(plane_name), list[int]()
        plane_rows = [row for row in rows if row.data_plane == plane_name]
        if isinstance(plane, LayoutKeeper):
            # The broker keeps layout and logs together; `services.mirror` follows them.
            agreeing_ids += [row.topic_id for row in plane_rows]
        elif not isinstance(plane, SetWiseDataPlane):
            differing_ids += [
                row.topic_id for row in plane_rows
            ]  # `reconcile` reports the reason for each topic.
        else:
            for chunk in _chunks(plane_rows, TOPICS_PER_VIEW):
                names = {row.topic_id: row.name for row in chunk}
                chunk_ids = _differing_topics(store, plane, names)
                differing_ids += chunk_ids
                agreeing_ids += sorted(names.keys() - {*chunk_ids})
        if agreeing_ids and not dry_run:
            with store.transaction() as tx:
                unmanaged_logs.replace(tx, plane_name, agreeing_ids, [])
                held_topics.verify(tx, agreeing_ids)
    return sorted(differing_ids)


def _differing_topics(store: Store, plane: SetWiseDataPlane, names: Mapping[int, str]) -> list[int]:
    """Return the ids of the topics that must be reconciled one by one; `names` are the topics' names by id. If their
    common view fails, log the error and return all ids. Raises StoreUnavailable.
    """
    try:
        plane_views = _views(store, plane, names)
        with store.transaction() as tx:
            metadata = backing_logs.read_expected_logs(tx, names)
        return [
            topic_id
            for topic_id in names
            if topic_id not in plane_views
            or topic_id not in metadata
            or _must_reconcile(names[topic_id], plane_views[topic_id], metadata[topic_id])
        ]
    except StoreUnavailable:
        raise
    except CleaveError as error:
        log.info("topics reconciled one by one", topics=len(names), error=str(error))
    except Exception:  # One of the topics causes the error.
        log.exception("topics reconciled one by one", topics=len(names))
    return list(names)


def _must_reconcile(topic: str, plane_view: PlaneView, metadata: ExpectedLogs) -> bool:
    """Return True if the topic is held or differs. Also True if an unverified topic has a log that belongs to
    none of its recorded segments, because the common view does not describe such a log.
    """
    if metadata.held_reason is not None or compare(topic, plane_view, metadata, {}):
        return True
    expected = {log.backing_topic for log in metadata.logs}
    return not metadata.is_verified and any(name not in expected for name in plane_view.listed)


def reconcile(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic_id: int,
    *,
    actor: str = "reconciler",
    dry_run: bool = False,
) -> tuple[Finding, ...]:
    """Compare the logs and gates of one topic and repair their differences; a dry run only lists them. A topic whose
    logs are ahead of the journal is rebuilt from the logs, with `actor` as the actor of the change, or held. Any other
    topic is recorded as verified and no longer held, unless its data plane seems to be another cluster. Return the
    findings: a remedy that failed is the `error` of its finding. Empty if a broker keeps the layout. Idempotent.

    Raises TopicNotFound, Unsupported if the topic's data plane is not configured here or cannot describe logs,
    DataPlaneUnavailable if a log does not answer, and TopicHeld, SegmentBusy or LostRace if the repair of a terminated
    log cannot be intended. Errors of the gates are not raised (see `reconcile_gates`).
    """
    differences = _reconcile_logs(store, planes, topic_id, actor=actor, dry_run=dry_run)
    return (*differences, *reconcile_gates(store, planes, [topic_id], dry_run=dry_run))


def _reconcile_logs(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic_id: int,
    *,
    actor: str = "reconciler",
    dry_run: bool = False,
) -> tuple[Finding, ...]:
    """Compare the logs of one topic and repair their differences, in up to `ROUNDS` rounds; a dry run only lists them.
    Return the findings of all rounds, none if a broker keeps the layout. Idempotent.

    If the logs are ahead of the journal, open logs of segments that others replaced are terminated, and the layout is
    rebuilt from the logs, with `actor` as the actor of the change. If the logs' records are not sufficient, a runner may
    still work on the topic, or such a log is still open in the last round, the topic is held. Raises TopicNotFound, Unsupported (the topic's data plane is not
    configured here, or cannot describe logs), DataPlaneUnavailable if a log does not answer, and TopicHeld, SegmentBusy
    or LostRace if the repair of a terminated log cannot be intended.
    """
    with store.transaction() as tx:
        topic = topics.get_topic(tx, topic_id)
    plane = configured(planes, topic.data_plane, topic.name)
    if isinstance(plane, LayoutKeeper):
        return ()  # The broker keeps layout and logs together; `services.mirror` follows them.
    if not isinstance(plane, SetWiseDataPlane):
        raise Unsupported(
            f"data plane {plane.name!r} of {topic.name} cannot describe several logs in one call"
        )
    findings: tuple[Finding, ...] = ()
    for round_number in range(1, ROUNDS + 1):
        plane_view = _view_of_topic(store, plane, topic_id, topic.name)
        round_findings, to_terminate = _reconcile_view(
            store,
            plane,
            topic_id,
            plane_view,
            actor=actor,
            dry_run=dry_run,
            is_last_round=round_number == ROUNDS,
        )
        findings += round_findings
        if to_terminate:
            plane.terminate_segments(to_terminate)
        elif dry_run or not _is_recovered(round_findings):
            break
    return findings


def _is_recovered(findings: Sequence[Finding]) -> bool:
    """Return True if the layout was rebuilt in this round, so that another round must compare it."""
    return any(finding.kind is FindingKind.LOGS_AHEAD and finding.error is None for finding in findings)


def _reconcile_view(
    store: Store,
    plane: SetWiseDataPlane,
    topic_id: int,
    plane_view: PlaneView,
    *,
    actor: str,
    dry_run: bool,
    is_last_round: bool,
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Compare the view with the journal, and repair the differences. Return the findings, and the logs to
    terminate before the next round, none in the last round. A dry run changes nothing.

    Rows change in one transaction, under the topic's lock; logs are repaired after its commit. If the logs
    are ahead, only the recovery is made. Unless `compare` gives a difference an error, the topic is recorded
    as verified and is no longer held, even if a remedy fails; otherwise an unverified topic is held. The list
    of the topic's unmanaged logs is replaced. Raises TopicNotFound, and TopicHeld, SegmentBusy or LostRace if
    the repair of a terminated log cannot be intended. A log on which the data plane fails has an error in its
    finding.
    """
    with store.transaction() as tx:
        # The lock keeps others from reserving ids or committing. A dry run takes no lock and reads the
        # metadata last.
        topic = topics.get_topic(tx, topic_id, lock=not dry_run)
        metadata = backing_logs.read_expected_logs(tx, [topic_id])[topic_id]
        expected = {log.backing_topic for log in metadata.logs}
        owners = backing_logs.ownership(tx, [name for name in plane_view.listed if name not in expected])
        if logs_ahead.may_be_ahead(plane_view, metadata, owners):
            layout = layouts.load_layout(tx, topic_id)
            planned = logs_ahead.plan(plane_view, metadata, owners, layout, to_ms(database_now(tx)))
            if planned.is_needed:
                finding = Finding(FindingKind.LOGS_AHEAD, topic.name, "", reason=logs_ahead.describe(planned))
                if dry_run:
                    return (finding,), ()
                recovered = logs_ahead.recovered(plane_view, metadata, planned)
                return logs_ahead.recover_or_hold(
                    tx, topic, plane, recovered, finding, actor, is_last_round=is_last_round
                )
        findings = compare(topic.name, plane_view, metadata, owners)
        if dry_run:
            return tuple(findings), ()
        errors = [finding.error for finding in findings if finding.error]
        if not errors:
            held_topics.release(tx, topic_id)
            held_topics.verify(tx, [topic_id])
        elif not metadata.is_verified:
            held_topics.hold(tx, topic_id, errors[0])
        findings = [
            finding_item if finding_item.error else _repair_metadata(tx, topic, plane, metadata, finding_item)
            for finding_item in findings
        ]
        unmanaged_logs.replace(tx, topic.data_plane, [topic_id], _foreign(topic_id, findings))
        missing = [
            finding_item.backing_topic
            for finding_item in findings
            if finding_item.kind is FindingKind.ACTIVE_MISSING
        ]
        origins = backing_logs.origins(tx, missing) if missing else {}
        closed_gates = gates.closed_logs(tx, topic_id)
    repaired = (
        finding_item
        if finding_item.error
        else _repair_logs(plane, metadata, origins, closed_gates, finding_item)
        for finding_item in findings
    )
    return tuple(repaired), ()


def _view_of_topic(store: Store, plane: SetWiseDataPlane, topic_id: int, name: str) -> PlaneView:
    """Return the view of one topic, with a report on every listed log. Raises DataPlaneUnavailable if the
    topic is gone or a log did not answer.
    """
    plane_view = _views(store, plane, {topic_id: name}).get(topic_id)
    other_logs = (
        []
        if plane_view is None
        else [name_of_log for name_of_log in plane_view.listed if name_of_log not in plane_view.reports]
    )
    reports = _describe(plane, other_logs)
    if plane_view is None or len(reports) < len(other_logs):
        raise DataPlaneUnavailable(f"not every log of {name} answered; the next run compares it again")
    return replace(plane_view, reports={**plane_view.reports, **reports})


def _views(store: Store, plane: SetWiseDataPlane, names: Mapping[int, str]) -> dict[int, PlaneView]:
    """Return the views of topics by id: list the logs first, then read the metadata without a lock to know
    which logs to describe.

    `names` are the topics' names by id. A topic that is gone, or of which a log did not answer, is left out.
    """
    listed = plane.list_segments_of(list(names.values()))
    with store.transaction() as tx:
        metadata = backing_logs.read_expected_logs(tx, names)
    logs = [log.backing_topic for topic_metadata in metadata.values() for log in topic_metadata.logs]
    reports = _describe(plane, logs)
    # Missing logs are described twice, because a log may be moving to another broker.
    reports |= _describe(
        plane, [name for name, report in reports.items() if report.state is LogState.MISSING]
    )
    return {
        topic_id: PlaneView(
            listed=tuple(listed[names[topic_id]]),
            reports={log.backing_topic: reports[log.backing_topic] for log in topic_metadata.logs},
            metadata=topic_metadata,
        )
        for topic_id, topic_metadata in metadata.items()
        if all(log.backing_topic in reports for log in topic_metadata.logs)
    }


def _describe(plane: SetWiseDataPlane, backing_topics: Sequence[str]) -> dict[str, LogReport]:
    """Return the reports of the logs by name, read in calls of up to `LOGS_PER_CALL` logs. A log that did not
    answer is left out.
    """
    return {
        name: report
        for chunk in _chunks(backing_topics, LOGS_PER_CALL)
        for name, report in plane.describe_logs(chunk).items()
    }


def _foreign(topic_id: int, findings: Sequence[Finding]) -> list[UnmanagedLog]:
    """Return the rows of the unmanaged logs among the findings."""
    return [
        UnmanagedLog(
            topic_id,
            finding.backing_topic,
            finding.segment_id,
            finding.reason or "",
            finding.report.origin,
            finding.report.most_unread,
        )
        for finding in findings
        if finding.kind is FindingKind.UNMANAGED_LOG and finding.report is not None
    ]


def _repair_metadata(
    tx: Connection, topic: topics.TopicRow, plane: DataPlane, metadata: ExpectedLogs, finding: Finding
) -> Finding:
    """Apply the remedies that change rows, in the transaction that holds the topic's lock: queue the deletion
    of an orphaned log, remove or add drained marks, or intend the repair of a terminated log. Return the
    finding, with the id of the operation if a repair was intended. Other kinds are returned unchanged. Raises
    TopicHeld, SegmentBusy or LostRace if the repair cannot be intended.
    """
    segment_id = finding.segment_id
    match finding.kind:
        case FindingKind.ORPHAN_LOG if segment_id is not None:
            deletion_entries.add(
                tx,
                data_plane=topic.data_plane,
                topic_id=topic.topic_id,
                backing_topics={segment_id: finding.backing_topic},
                reason="orphan found by the reconciler",
            )
        case FindingKind.UNREAD_AGAIN if segment_id is not None:
            drains.undrain(tx, topic.topic_id, finding.subscription or "", [segment_id])
        case FindingKind.SEALED_MISSING if segment_id is not None:
            for name in metadata.subscriptions:
                drains.mark_drained(tx, topic.topic_id, name, [segment_id])
        case FindingKind.ACTIVE_TERMINATED if segment_id is not None:
            return replace(finding, operation_id=_intend_repair(tx, topic, plane, metadata, segment_id))
        case _:
            pass
    return finding


def _intend_repair(
    tx: Connection, topic: topics.TopicRow, plane: DataPlane, metadata: ExpectedLogs, segment_id: int
) -> int:
    """Intend the reshape of one segment into one, and return the id of the operation. If the reshape is
    intended already, return the id of that operation. An aborted attempt has reserved an id, so the next
    attempt has another key. Raises TopicHeld, SegmentBusy, LostRace.
    """
    key = f"heal/{topic.topic_id}/{segment_id}/{metadata.next_segment_id}"
    reason = f"log of active segment {segment_id} is terminated"
    request = Request(key, Origin.RECONCILER, "reconciler", reason)
    view = reshape_intents.look(tx, topic.topic_id, key)
    first_intent = reshape_intents.first_intent(tx, view)
    if first_intent is not None:
        return first_intent.operation.operation_id
    view.demand_current()
    draft = ReshapeDraft(view, plan_heal(view.layout, segment_id), request, plane.backing_topic)
    return reshape_intents.intend(tx, draft).operation.operation_id


def _repair_logs(
    plane: DataPlane,
    metadata: ExpectedLogs,
    origins: Mapping[str, LogOrigin],
    closed: Collection[tuple[str, str]],
    finding: Finding,
) -> Finding:
    """Apply the remedies that call the data plane: create a missing log or cursor, or terminate an open log
    of a sealed segment. Other kinds are returned unchanged. A CleaveError becomes the `error` of the returned
    finding, and a later run finds the difference again.

    `origins` has the creation records of missing logs by name. `closed` holds pairs of log and subscription
    with closed gates, whose cursors are created together with the gate.
    """
    remedies: Mapping[FindingKind, Callable[[], object]] = {
        FindingKind.ACTIVE_MISSING: lambda: _create_again(
            plane, metadata, finding.backing_topic, origins.get(finding.backing_topic), closed
        ),
        FindingKind.SEALED_OPEN: lambda: plane.terminate_segment(finding.backing_topic),
        FindingKind.CURSOR_MISSING: lambda: _create_cursor(
            plane, finding.backing_topic, finding.subscription or "", closed
        ),
    }
    try:
        remedies.get(finding.kind, lambda: None)()
    except CleaveError as error:
        return replace(finding, error=str(error))
    return finding


def _create_cursor(
    plane: DataPlane, backing_topic: str, name: str, closed: Collection[tuple[str, str]]
) -> None:
    """Create the cursor of the subscription `name`, together with its gate if the pair of log and subscription is in
    `closed`. Raises SegmentNotFound, and the other errors of the data plane.
    """
    if (backing_topic, name) in closed and isinstance(plane, GatedDataPlane):
        plane.close_gate(backing_topic, name)
    else:
        plane.create_subscription(backing_topic, name)


def _create_again(
    plane: DataPlane,
    metadata: ExpectedLogs,
    backing_topic: str,
    origin: LogOrigin | None,
    closed: Collection[tuple[str, str]],
) -> None:
    """Create a missing log of the topic that `metadata` describes. `origin` is the creation record to store with the
    log; None: no record is stored.

    The log gets cursors, at its beginning, for the topic's live subscriptions, and for the subscriptions on the logs
    of its parents, which applications may have created, except those that are being deleted. `closed` contains pairs
    of log and subscription with closed gates. A cursor of such a pair is created together with its gate.

    Raises the errors of the data plane. After an error the log may lack cursors, which a repeated call adds.
    """
    [parents] = [log.parent_topics for log in metadata.logs if log.backing_topic == backing_topic]
    parent_cursors = {name for parent in parents for name in plane.list_subscriptions(parent)}
    expected = metadata.subscriptions.keys() | parent_cursors - metadata.deleting_subscriptions
    gated = {name for name in expected if (backing_topic, name) in closed}
    plane.create_segment(backing_topic, sorted(expected - gated), origin)
    for name in sorted(gated):
        _create_cursor(plane, backing_topic, name, closed)


def _chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
