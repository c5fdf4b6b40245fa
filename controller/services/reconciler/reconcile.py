"""One topic, or many: look at the data plane, lock and compare, put right what can be put right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sqlalchemy import Connection

from controller import telemetry
from controller.dataplane.base import DataPlane, LogState
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import CleaveError, StoreUnavailable, Unsupported
from controller.domain.operation import Origin
from controller.domain.reshape import plan_heal
from controller.domain.segment import SegmentState
from controller.services.reconciler.findings import Finding, FindingKind, PlaneView, compare
from controller.store.journal import reshape_intents, tombstones
from controller.store.journal.operations import Request
from controller.store.journal.reshape_intents import ReshapeDraft
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from controller.store.topics import backing_logs, drains, topics
from controller.store.topics.backing_logs import Books

log = telemetry.get_logger(__name__)


def reconcile_topics(
    store: Store,
    planes: Mapping[str, DataPlane],
    *,
    limit: int = 500,
    after: int = 0,
    shards: Shards | None = None,
    dry_run: bool = False,
) -> tuple[list[Finding], int | None]:
    """Findings of up to `limit` topics with id above `after`, and the id to continue after (None: that was all).

    A topic whose data plane does not answer is logged and passed over. Raises StoreUnavailable only.
    """
    with store.transaction() as tx:
        topic_ids = backing_logs.comparable_topics(tx, limit=limit, after=after, shards=shards)
    findings: list[Finding] = []
    for topic_id in topic_ids:
        try:
            findings += reconcile(store, planes, topic_id, dry_run=dry_run)
        except StoreUnavailable:
            raise
        except CleaveError as error:
            log.warning("topic not reconciled", topic_id=topic_id, error=str(error))
    return findings, topic_ids[-1] if len(topic_ids) == limit else None


def reconcile(
    store: Store, planes: Mapping[str, DataPlane], topic_id: int, *, dry_run: bool = False
) -> tuple[Finding, ...]:
    """Compare one topic and put right what can be; a dry run only lists. Idempotent.

    Raises TopicNotFound, Unsupported (its data plane is not configured here), DataPlaneUnavailable while looking.
    """
    with store.transaction() as tx:
        topic = topics.get_topic(tx, topic_id)
    plane = planes.get(topic.data_plane)
    if plane is None:
        raise Unsupported(f"data plane {topic.data_plane!r} of {topic.name} is not configured here")
    if isinstance(plane, LayoutKeeper):
        return ()  # its broker keeps layout and logs together; `services.mirror` follows it
    seen = _look(store, plane, topic)
    with store.transaction() as tx:
        # Under the lock nobody reserves ids or commits; a dry run has only the order of its looks, books last.
        topics.get_topic(tx, topic_id, lock=not dry_run)
        books = backing_logs.read_books(tx, topic_id)
        findings = compare(topic.name, plane.backing_topic, seen, books)
        if not dry_run:
            findings = [
                finding if finding.error else _answer_in_books(tx, topic, plane, books, finding)
                for finding in findings
            ]
    if dry_run:
        return tuple(findings)
    return tuple(
        finding if finding.error else _answer_on_plane(plane, books, finding) for finding in findings
    )


def _look(store: Store, plane: DataPlane, topic: topics.TopicRow) -> PlaneView:
    """The listing first, then the books without a lock to know which logs to look at one by one."""
    listed = tuple(plane.list_segments(topic.name))
    with store.transaction() as tx:
        books = backing_logs.read_books(tx, topic.topic_id)
    states = {one.segment_id: plane.segment_state(one.backing_topic) for one in books.logs}
    cursors = {
        one.segment_id: frozenset(plane.list_subscriptions(one.backing_topic))
        for one in books.logs
        if one.state is SegmentState.ACTIVE and states[one.segment_id] is LogState.OPEN
    }
    for one in books.logs:  # what is missing is looked at twice: a log may be on its way to another broker
        if states[one.segment_id] is LogState.MISSING:
            states[one.segment_id] = plane.segment_state(one.backing_topic)
    return PlaneView(listed, states, cursors, books)


def _answer_in_books(
    tx: Connection, topic: topics.TopicRow, plane: DataPlane, books: Books, finding: Finding
) -> Finding:
    """Put right what takes a row, in the transaction that holds the topic's lock."""
    segment_id = finding.segment_id
    match finding.kind:
        case FindingKind.ORPHAN_LOG if segment_id is not None:
            tombstones.add(
                tx,
                data_plane=topic.data_plane,
                topic_id=topic.topic_id,
                backing_topics={segment_id: finding.backing_topic},
                reason="orphan found by the reconciler",
            )
        case FindingKind.SEALED_MISSING if segment_id is not None:
            for name in books.subscriptions:
                drains.mark_drained(tx, topic.topic_id, name, [segment_id])
        case FindingKind.ACTIVE_TERMINATED if segment_id is not None:
            return replace(finding, operation_id=_heal(tx, topic, plane, books, segment_id))
        case _:
            pass
    return finding


def _heal(tx: Connection, topic: topics.TopicRow, plane: DataPlane, books: Books, segment_id: int) -> int:
    """Intend the reshape 1 → 1; an attempt that was aborted reserved an id, so the next one has another key."""
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


def _answer_on_plane(plane: DataPlane, books: Books, finding: Finding) -> Finding:
    """Put right what takes a call of the data plane. A failure is noted in the finding, and a later run
    finds it again.
    """
    remedies: Mapping[FindingKind, Callable[[], object]] = {
        FindingKind.ACTIVE_MISSING: lambda: _create_again(plane, books, finding.backing_topic),
        FindingKind.SEALED_OPEN: lambda: plane.terminate_segment(finding.backing_topic),
        FindingKind.CURSOR_MISSING: lambda: plane.create_subscription(
            finding.backing_topic, finding.subscription or ""
        ),
    }
    try:
        remedies.get(finding.kind, lambda: None)()
    except CleaveError as error:
        return replace(finding, error=str(error))
    return finding


def _create_again(plane: DataPlane, books: Books, backing_topic: str) -> None:
    """With the cursors its first creation gave it: the recorded ones, and those applications made on its parents."""
    [parents] = [one.parent_topics for one in books.logs if one.backing_topic == backing_topic]
    found = {name for parent in parents for name in plane.list_subscriptions(parent)}
    wanted = books.subscriptions.keys() | found - books.deleting_subscriptions
    plane.create_segment(backing_topic, sorted(wanted))
