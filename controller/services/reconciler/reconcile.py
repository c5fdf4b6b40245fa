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
from controller.domain.whole_numbers import whole
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
    """Compare the logs and gates of up to `limit` topics with an id above `after`, and repair the differences; a dry
    run only lists the differences. Topics that were deleted in the last 24 hours are compared too. `shards` restricts
    the topics; None compares the topics of all shards. Return the findings, and the id of the last compared topic as
    the next `after`; None if there were fewer than `limit` topics, so that no topic is left.

    The logs of the topics are described together, without a lock. Topics without a difference are recorded as
    verified, and their lists of unmanaged logs are emptied. The other topics are reconciled one by one. If a topic
    cannot be compared, for example because its data plane does not answer, the error is logged and the topic is
    skipped. Only errors of the store are raised, such as StoreUnavailable, and InvalidInput for a `limit` below 1.
    """
    whole(limit, "limit", 1)
    topic_ids = store.in_transaction(backing_logs.comparable_topics, limit=limit, after=after, shards=shards)
    findings = _compare_all(store, planes, topic_ids, dry_run=dry_run)
    findings += reconcile_gates(store, planes, topic_ids, dry_run=dry_run)
    return findings, topic_ids[-1] if len(topic_ids) == limit else None


def verify_topics(
    store: Store,
    planes: Mapping[str, DataPlane],
    *,
    limit: int = TOPICS_PER_VIEW,
    shards: Shards | None = None,
    tried: set[int] | None = None,
) -> tuple[int, int]:
    """Compare the logs of up to `limit` unverified topics with the journal, and repair the differences. Topics become
    unverified by a restart, a promotion or a restore of the database. `shards` restricts the topics; None: the topics
    of all shards. Return the number of these topics, and how many of them are verified and not held afterwards; both
    0 if no topic is unverified. A topic that cannot be compared is logged and stays unverified. Only errors of the
    store are raised, such as StoreUnavailable.

    Topics whose ids are in `tried` are left out, and the ids of the topics that stay unverified or held are added to
    it. So topics that cannot be compared do not keep later calls from the others.
    """
    tried = set() if tried is None else tried
    topic_ids = store.in_single_statement(
        held_topics.unverified_topics, limit=limit, shards=shards, excluded=tried
    )
    if not topic_ids:
        return 0, 0
    _compare_all(store, planes, topic_ids, dry_run=False)
    unverified_ids = store.in_single_statement(held_topics.topics_that_may_not_act, topic_ids)
    tried.update(unverified_ids)
    return len(topic_ids), len(topic_ids) - len(unverified_ids)


def _compare_all(
    store: Store, planes: Mapping[str, DataPlane], topic_ids: Sequence[int], *, dry_run: bool
) -> list[Finding]:
    """Find the topics whose logs differ from the journal, reconcile each of them, and return the findings. Topics
    that agree are recorded as verified. A dry run changes nothing. A topic whose reconciliation fails is logged and
    skipped; after an unexpected error the topic is also recorded in the view `inspect.set_aside`, except in a dry
    run. Only errors of the store are raised, such as StoreUnavailable.
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
    """Describe the logs of all these topics together, and return the sorted ids of the topics to reconcile one by
    one: topics with a difference, topics whose logs could not be described, and topics whose data plane is not
    configured here or cannot describe logs. An id without a topic is absent.

    All other topics are recorded without unmanaged logs, and as verified, unless this is a dry run. A topic whose row
    has changed since, and every topic if the database was restarted, promoted or restored since, stays unverified.
    Topics whose broker keeps the layout are recorded without a comparison. Raises the errors of `Store.transaction`.
    """
    with store.transaction() as tx:
        rows, identity = topics.get_topics(tx, topic_ids), held_topics.database_identity(tx)
    row_versions = {row.topic_id: row.row_version for row in rows}
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
                compared = {topic_id: row_versions[topic_id] for topic_id in agreeing_ids}
                held_topics.verify(tx, held_topics.unchanged_unverified(tx, compared, identity))
    return sorted(differing_ids)


def _differing_topics(store: Store, plane: SetWiseDataPlane, names: Mapping[int, str]) -> list[int]:
    """Describe the logs of these topics together, and return the ids of the topics that must be reconciled one by
    one: topics that differ or are held, and topics that are gone or of which a log did not answer. `names` are the
    topics' names by id. Changes nothing. If the common description fails with any error except StoreUnavailable, the
    error is logged, and all ids are returned. Raises StoreUnavailable.
    """
    try:
        plane_views = _views(store, plane, names)
        metadata = store.in_transaction(backing_logs.read_expected_logs, names)
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
    """Return True if the topic must be reconciled by itself: it is held, its logs differ from the metadata, or it is
    unverified, and has a segment without a log or a listed log that belongs to none of its segments. The common view
    has no report on such a log, so only a view of the single topic can tell who created the log.
    """
    if metadata.held_reason is not None or compare(topic, plane_view, metadata, {}):
        return True
    expected = {log.backing_topic for log in metadata.logs}
    return not metadata.is_verified and (
        not expected.issuperset(plane_view.listed)
        or any(plane_view.state(log) is LogState.MISSING for log in metadata.logs)
    )


def reconcile(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic_id: int,
    *,
    actor: str = "reconciler",
    dry_run: bool = False,
) -> tuple[Finding, ...]:
    """Compare the logs and gates of one topic with the journal, and repair the differences; a dry run only lists the
    differences. Return the findings. If a remedy failed, its finding has an `error`, and a later call finds the
    difference again. Empty if the topic's broker keeps the layout. Idempotent.

    If the logs are ahead of the journal, the layout is rebuilt from the logs, with `actor` as the actor of the
    change, or the topic is held. Any other topic is recorded as verified and is no longer held, even if a remedy
    failed, unless its data plane seems to be another cluster: then nothing is repaired, and an unverified topic is
    held.

    Raises TopicNotFound, Unsupported if the topic's data plane is not configured here or cannot describe logs,
    DataPlaneUnavailable if a log does not answer, TopicHeld, SegmentBusy or LostRace if the repair of a terminated
    log cannot be intended, and the errors of the store. Errors of the gates' comparison are only logged (see
    `reconcile_gates`).
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
    """Compare the logs of one topic with the journal, and repair the differences, in up to `ROUNDS` rounds; a dry run
    makes one round and only lists the differences. Return the findings of all rounds; empty if the topic's broker
    keeps the layout. A remedy that failed is the `error` of its finding. Idempotent.

    If the logs are ahead of the journal, open logs of segments that other segments replaced are terminated, and the
    layout is rebuilt from the logs, with `actor` as the actor of the change. If the logs' records are not sufficient,
    a runner may still work on the topic, or such a log is still open in the last round, the topic is held instead,
    and the finding has an `error`. Raises TopicNotFound, Unsupported if the topic's data plane is not configured here
    or cannot describe logs, DataPlaneUnavailable if a log does not answer, TopicHeld, SegmentBusy or LostRace if the
    repair of a terminated log cannot be intended, the other errors of the data plane, and the errors of the store.
    """
    topic = store.in_transaction(topics.get_topic, topic_id)
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
    """Compare the view of one topic with the journal, and repair the differences. Return the findings, and the logs that the caller must
    terminate before the next round; in the last round (`is_last_round`) the list of logs is empty. A dry run changes and locks nothing.

    Rows change in one transaction, under the topic's lock; then logs are repaired. If the logs are ahead of the journal, the layout is
    rebuilt or the topic is held (`recover_or_hold`), and nothing else is repaired. Otherwise, if no finding of `compare` has an error,
    the topic is recorded as verified and is no longer held, even if a remedy fails later. If a finding has an error, an unverified topic
    is held. The list of the topic's unmanaged logs is replaced.

    Raises TopicNotFound, TopicHeld, SegmentBusy or LostRace if the repair of a terminated log cannot be intended, and the errors of
    `Store.transaction`; then no row has changed. If the data plane fails for a log, the error is in the log's finding and is not raised.
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
    """Return the view of one topic, with a report on every listed log and on every log of the topic's segments.
    Changes nothing. Raises DataPlaneUnavailable if the topic is gone or a log did not answer, the other errors of the
    data plane, and the errors of `Store.transaction`.
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
    """Return the views of topics by id. `names` are the topics' names by id. The logs on the data plane are listed
    first; then the metadata is read without a lock, and the logs of the segments are described. A topic that does not
    exist, or of which a log did not answer, is absent. Raises the errors of the data plane and of
    `Store.transaction`.
    """
    listed = plane.list_segments_of(list(names.values()))
    metadata = store.in_transaction(backing_logs.read_expected_logs, names)
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
    """Apply the remedy of the finding if the remedy changes rows, in the transaction of the caller, who holds the
    topic's lock. ORPHAN_LOG: the deletion of the log is queued. UNREAD_AGAIN: the drained mark of the subscription is
    removed. SEALED_MISSING: the segment is marked as drained for every live subscription. ACTIVE_TERMINATED: the
    repair of the segment is intended. For other kinds nothing changes.

    Return the finding; for ACTIVE_TERMINATED, a copy with the id of the operation. Raises TopicHeld, SegmentBusy or
    LostRace if the repair cannot be intended; the caller then rolls back.
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
    """Write the intent to repair the segment by a reshape into one segment of the same range, and return the id of
    the operation. If the same repair is intended already, return the id of that operation. After an aborted attempt a
    new intent is written: the attempt has reserved a segment id, which is part of the request key. Raises TopicHeld,
    SegmentBusy, TopicNotLive, and LostRace.
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
    """Apply the remedy of the finding if the remedy calls the data plane. ACTIVE_MISSING: the log is created again,
    with its cursors. SEALED_OPEN: the log is terminated. CURSOR_MISSING: the cursor is created at the earliest
    message. CURSOR_UNRECORDED: the cursor skips the barrier of the log, if there is one. For other kinds nothing is
    called. Return the finding. If the remedy raises a CleaveError, return a copy of the finding with the error's text as
    `error`; a later run finds the difference again.

    `origins` has the creation records to store with missing logs, by log. `closed` has the pairs of log and
    subscription whose gates are recorded as closed; the cursor of such a pair is created together with its gate.
    """
    remedies: Mapping[FindingKind, Callable[[], object]] = {
        FindingKind.ACTIVE_MISSING: lambda: _create_again(
            plane, metadata, finding.backing_topic, origins.get(finding.backing_topic), closed
        ),
        FindingKind.SEALED_OPEN: lambda: plane.terminate_segment(finding.backing_topic),
        FindingKind.CURSOR_MISSING: lambda: _create_cursor(
            plane, finding.backing_topic, finding.subscription or "", closed
        ),
        FindingKind.CURSOR_UNRECORDED: lambda: _skip_barrier(
            plane, finding.backing_topic, finding.subscription or ""
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


def _skip_barrier(plane: DataPlane, backing_topic: str, name: str) -> None:
    """Make the subscription `name` skip the barrier of the log, which a standard consumer does not acknowledge: the broker
    keeps everything behind an unread barrier. Raises SegmentNotFound, and the other errors of the data plane.
    """
    if isinstance(plane, GatedDataPlane):
        plane.skip_barrier(backing_topic, name)


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
