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
from controller.domain.errors import CleaveError, DataPlaneUnavailable, StoreUnavailable, Unsupported
from controller.domain.log_origin import LogOrigin
from controller.domain.operation import Origin
from controller.domain.reshape import plan_heal
from controller.services.reconciler import ahead
from controller.services.reconciler.findings import Finding, FindingKind, PlaneView, compare
from controller.services.reconciler.gates import reconcile_gates
from controller.store import set_aside
from controller.store.journal import deletion_entries, reshape_intents
from controller.store.journal.operations import Request
from controller.store.journal.reshape_intents import ReshapeDraft
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store
from controller.store.set_aside import SetAside
from controller.store.shards import Shards
from controller.store.topics import (
    backing_logs,
    drains,
    gates,
    holds,
    layouts,
    recovery,
    topics,
    unmanaged_logs,
)
from controller.store.topics.backing_logs import ExpectedLogs
from controller.store.topics.recovery import RecoveredLayout
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
    """Return the findings of up to `limit` topics with an id above `after`, and the id after which to
    continue (None: there are no more topics).

    All topics are first described together without a lock. Topics with a difference are then reconciled one
    by one. If the data plane of a topic does not answer, the error is logged and the topic is skipped. Raises
    StoreUnavailable only.
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
    """Compare the logs of up to `limit` unverified topics, which exist after a restart, a promotion or a
    restore of the database. Return the number of these topics, and how many of them are verified afterwards.
    Raises StoreUnavailable only.
    """
    with store.single_statement() as tx:
        topic_ids = holds.unverified_topics(tx, limit=limit, shards=shards)
    if not topic_ids:
        return 0, 0
    _compare_all(store, planes, topic_ids, dry_run=False)
    with store.single_statement() as tx:
        return len(topic_ids), len(topic_ids) - holds.count_unverified(tx, topic_ids)


def _compare_all(
    store: Store, planes: Mapping[str, DataPlane], topic_ids: Sequence[int], *, dry_run: bool
) -> list[Finding]:
    findings: list[Finding] = []
    unfit: list[SetAside] = []
    for topic_id in _suspects(store, planes, topic_ids, dry_run=dry_run):
        try:
            findings += _reconcile_logs(store, planes, topic_id, dry_run=dry_run)
        except StoreUnavailable:
            raise
        except CleaveError as error:
            log.warning("topic not reconciled", topic_id=topic_id, error=str(error))
        except Exception as error:
            # An error of one topic must not keep the other topics from being compared.
            log.exception("topic not reconciled", topic_id=topic_id)
            unfit.append(
                SetAside(
                    f"topic {topic_id}", f"it cannot be compared: {type(error).__name__}: {error}", topic_id
                )
            )
    if unfit and not dry_run:
        with store.transaction() as tx:
            set_aside.note(tx, set_aside.Batch.MAINTENANCE, unfit)
    return findings


def _suspects(
    store: Store, planes: Mapping[str, DataPlane], topic_ids: Sequence[int], *, dry_run: bool
) -> list[int]:
    """Return the topics that differ according to one common view, and those whose logs could not be
    described. The other topics are recorded as verified.
    """
    with store.transaction() as tx:
        rows = topics.get_topics(tx, topic_ids)
    suspects: list[int] = []
    for plane_name in sorted({row.data_plane for row in rows}):
        plane, agreeing = planes.get(plane_name), list[int]()
        plane_rows = [row for row in rows if row.data_plane == plane_name]
        if isinstance(plane, LayoutKeeper):
            # The broker keeps layout and logs together; `services.mirror` follows them.
            agreeing += [row.topic_id for row in plane_rows]
        elif not isinstance(plane, SetWiseDataPlane):
            suspects += [row.topic_id for row in plane_rows]  # `reconcile` reports the reason for each topic.
        else:
            for chunk in _chunks(plane_rows, TOPICS_PER_VIEW):
                names = {row.topic_id: row.name for row in chunk}
                differing = _differing(store, plane, names)
                suspects += differing
                agreeing += sorted(names.keys() - {*differing})
        if agreeing and not dry_run:
            with store.transaction() as tx:
                unmanaged_logs.replace(tx, plane_name, agreeing, [])
                holds.verify(tx, agreeing)
    return sorted(suspects)


def _differing(store: Store, plane: SetWiseDataPlane, names: Mapping[int, str]) -> list[int]:
    """Return the topics that must be reconciled one by one: all of them if their common view fails."""
    try:
        seen = _views(store, plane, names)
        with store.transaction() as tx:
            books = backing_logs.read_expected_logs(tx, names)
        return [
            topic_id
            for topic_id in names
            if topic_id not in seen
            or topic_id not in books
            or _must_reconcile(names[topic_id], seen[topic_id], books[topic_id])
        ]
    except StoreUnavailable:
        raise
    except CleaveError as error:
        log.info("topics reconciled one by one", topics=len(names), error=str(error))
    except Exception:  # One of the topics causes the error.
        log.exception("topics reconciled one by one", topics=len(names))
    return list(names)


def _must_reconcile(topic: str, seen: PlaneView, books: ExpectedLogs) -> bool:
    """Return True if the common view, which describes logs of segments only, is not sufficient for the topic."""
    if books.held_reason is not None or compare(topic, seen, books, {}):
        return True
    expected = {log.backing_topic for log in books.logs}
    return not books.is_verified and any(name not in expected for name in seen.listed)


def reconcile(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic_id: int,
    *,
    actor: str = "reconciler",
    dry_run: bool = False,
) -> tuple[Finding, ...]:
    """Compare the logs and gates of one topic and repair their differences; a dry run only lists them. Idempotent. Raises the errors of
    `_reconcile_logs`.
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
    """Compare the logs of one topic and repair their differences; a dry run only lists them. Idempotent.

    If the logs are ahead of the journal, the layout is rebuilt from the logs, with `actor` as the actor of
    the change. If the logs' records are not sufficient, the topic is held. Raises TopicNotFound, Unsupported
    (the topic's data plane is not configured here), and DataPlaneUnavailable if a log does not answer.
    """
    with store.transaction() as tx:
        topic = topics.get_topic(tx, topic_id)
    plane = planes.get(topic.data_plane)
    if plane is None:
        raise Unsupported(f"data plane {topic.data_plane!r} of {topic.name} is not configured here")
    if isinstance(plane, LayoutKeeper):
        return ()  # The broker keeps layout and logs together; `services.mirror` follows them.
    if not isinstance(plane, SetWiseDataPlane):
        raise Unsupported(
            f"data plane {plane.name!r} of {topic.name} cannot describe several logs in one call"
        )
    findings: tuple[Finding, ...] = ()
    for _ in range(ROUNDS):
        seen = _view_of_topic(store, plane, topic_id, topic.name)
        round_findings, to_terminate = _reconcile_seen(
            store, plane, topic_id, seen, actor=actor, dry_run=dry_run
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


def _reconcile_seen(
    store: Store, plane: SetWiseDataPlane, topic_id: int, seen: PlaneView, *, actor: str, dry_run: bool
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Compare the view with the journal, and repair the differences. Return the findings, and the logs to
    terminate before the next round.
    """
    with store.transaction() as tx:
        # The lock keeps others from reserving ids or committing. A dry run takes no lock and reads the
        # metadata last.
        topic = topics.get_topic(tx, topic_id, lock=not dry_run)
        books = backing_logs.read_expected_logs(tx, [topic_id])[topic_id]
        expected = {log.backing_topic for log in books.logs}
        owners = backing_logs.ownership(tx, [name for name in seen.listed if name not in expected])
        if ahead.may_be_ahead(seen, books, owners):
            layout = layouts.load_layout(tx, topic_id)
            planned = ahead.plan(seen, books, owners, layout, to_ms(database_now(tx)))
            if planned.is_needed:
                finding = Finding(FindingKind.LOGS_AHEAD, topic.name, "", reason=ahead.describe(planned))
                if dry_run:
                    return (finding,), ()
                return _recover(tx, topic, plane, ahead.recovered(seen, books, planned), finding, actor)
        findings = compare(topic.name, seen, books, owners)
        if dry_run:
            return tuple(findings), ()
        doubts = [finding.error for finding in findings if finding.error]
        if not doubts:
            holds.release(tx, topic_id)
            holds.verify(tx, [topic_id])
        elif not books.is_verified:
            holds.hold(tx, topic_id, doubts[0])
        findings = [
            item if item.error else _repair_metadata(tx, topic, plane, books, item) for item in findings
        ]
        unmanaged_logs.replace(tx, topic.data_plane, [topic_id], _foreign(topic_id, findings))
        missing = [item.backing_topic for item in findings if item.kind is FindingKind.ACTIVE_MISSING]
        origins = backing_logs.origins(tx, missing) if missing else {}
        closed = gates.closed_logs(tx, topic_id)
    repaired = (
        item if item.error else _repair_logs(plane, books, origins, closed, item) for item in findings
    )
    return tuple(repaired), ()


def _recover(
    tx: Connection,
    topic: topics.TopicRow,
    plane: DataPlane,
    recovered: RecoveredLayout,
    finding: Finding,
    actor: str,
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Rebuild the layout, or hold the topic. The topic is held until a person decides, logs are terminated,
    or no runner works on it.
    """
    planned, reason = recovered.plan, finding.reason or ""
    busy = recovery.why_not_idle(tx, topic, call_timeout_seconds=plane.call_timeout_seconds)
    obstacle = reason if planned.problems else busy
    if obstacle is not None:
        if holds.hold(tx, topic.topic_id, reason):
            log.warning("topic held", topic=topic.name, reason=reason)
        return (replace(finding, error=obstacle),), ()
    if planned.to_terminate:
        holds.hold(tx, topic.topic_id, reason)
        return (), planned.to_terminate
    epoch = recovery.commit(tx, topic, recovered, actor=actor, reason=reason)
    log.warning("layout recovered from the logs", topic=topic.name, epoch=epoch, reason=reason)
    return (finding,), ()


def _view_of_topic(store: Store, plane: SetWiseDataPlane, topic_id: int, name: str) -> PlaneView:
    """Return the view of one topic, with a report on every listed log. Raises DataPlaneUnavailable if a log
    did not answer.
    """
    seen = _views(store, plane, {topic_id: name}).get(topic_id)
    other_logs = (
        []
        if seen is None
        else [name_of_log for name_of_log in seen.listed if name_of_log not in seen.reports]
    )
    reports = _describe(plane, other_logs)
    if seen is None or len(reports) < len(other_logs):
        raise DataPlaneUnavailable(f"not every log of {name} answered; the next run compares it again")
    return replace(seen, reports={**seen.reports, **reports})


def _views(store: Store, plane: SetWiseDataPlane, names: Mapping[int, str]) -> dict[int, PlaneView]:
    """Return the views of topics: list the logs first, then read the metadata without a lock to know which
    logs to describe.

    `names` are the topics' names by id. A topic with a log that did not answer is left out.
    """
    listed = plane.list_segments_of(list(names.values()))
    with store.transaction() as tx:
        books = backing_logs.read_expected_logs(tx, names)
    logs = [log.backing_topic for of_topic in books.values() for log in of_topic.logs]
    reports = _describe(plane, logs)
    # Missing logs are described twice, because a log may be moving to another broker.
    reports |= _describe(
        plane, [name for name, report in reports.items() if report.state is LogState.MISSING]
    )
    return {
        topic_id: PlaneView(
            listed=tuple(listed[names[topic_id]]),
            reports={log.backing_topic: reports[log.backing_topic] for log in of_topic.logs},
            books=of_topic,
        )
        for topic_id, of_topic in books.items()
        if all(log.backing_topic in reports for log in of_topic.logs)
    }


def _describe(plane: SetWiseDataPlane, backing_topics: Sequence[str]) -> dict[str, LogReport]:
    return {
        name: report
        for chunk in _chunks(backing_topics, LOGS_PER_CALL)
        for name, report in plane.describe_logs(chunk).items()
    }


def _foreign(topic_id: int, findings: Sequence[Finding]) -> list[UnmanagedLog]:
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
    tx: Connection, topic: topics.TopicRow, plane: DataPlane, books: ExpectedLogs, finding: Finding
) -> Finding:
    """Apply the remedies that change rows, in the transaction that holds the topic's lock."""
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
            for name in books.subscriptions:
                drains.mark_drained(tx, topic.topic_id, name, [segment_id])
        case FindingKind.ACTIVE_TERMINATED if segment_id is not None:
            return replace(finding, operation_id=_intend_repair(tx, topic, plane, books, segment_id))
        case _:
            pass
    return finding


def _intend_repair(
    tx: Connection, topic: topics.TopicRow, plane: DataPlane, books: ExpectedLogs, segment_id: int
) -> int:
    """Intend the reshape of one segment into one. An aborted attempt has reserved an id, so the next attempt
    has another key.
    """
    key = f"heal/{topic.topic_id}/{segment_id}/{books.next_segment_id}"
    reason = f"log of active segment {segment_id} is terminated"
    request = Request(key, Origin.RECONCILER, "reconciler", reason)
    view = reshape_intents.look(tx, topic.topic_id, key)
    first = reshape_intents.first_intent(tx, view, request)
    if first is not None:
        return first.operation.operation_id
    view.demand_current()
    draft = ReshapeDraft(view, plan_heal(view.layout, segment_id), request, plane.backing_topic)
    return reshape_intents.intend(tx, draft).operation.operation_id


def _repair_logs(
    plane: DataPlane,
    books: ExpectedLogs,
    origins: Mapping[str, LogOrigin],
    closed: Collection[tuple[str, str]],
    finding: Finding,
) -> Finding:
    """Apply the remedies that call the data plane. A failure is noted in the finding, and a later run finds
    the difference again. `closed` holds logs and subscriptions with closed gates, whose cursors are created after the gate.
    """
    remedies: Mapping[FindingKind, Callable[[], object]] = {
        FindingKind.ACTIVE_MISSING: lambda: _create_again(
            plane, books, finding.backing_topic, origins.get(finding.backing_topic), closed
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
    if (backing_topic, name) in closed and isinstance(plane, GatedDataPlane):
        plane.close_gate(backing_topic, name)
    else:
        plane.create_subscription(backing_topic, name)


def _create_again(
    plane: DataPlane,
    books: ExpectedLogs,
    backing_topic: str,
    origin: LogOrigin | None,
    closed: Collection[tuple[str, str]],
) -> None:
    """Create the log again with the cursors of its first creation: the recorded subscriptions, and those that
    applications created on its parents.
    """
    [parents] = [log.parent_topics for log in books.logs if log.backing_topic == backing_topic]
    parent_cursors = {name for parent in parents for name in plane.list_subscriptions(parent)}
    expected = books.subscriptions.keys() | parent_cursors - books.deleting_subscriptions
    gated = {name for name in expected if (backing_topic, name) in closed}
    plane.create_segment(backing_topic, sorted(expected - gated), origin)
    for name in sorted(gated):
        _create_cursor(plane, backing_topic, name, closed)


def _chunks(many: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for first in range(0, len(many), size):
        yield many[first : first + size]
