"""One topic, or many: look at the data plane, lock and compare, put right what can be put right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Connection

from controller import telemetry
from controller.dataplane.base import DataPlane, LogState, SetWiseDataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import CleaveError, DataPlaneUnavailable, StoreUnavailable, Unsupported
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

Some = TypeVar("Some")

TOPICS_A_LOOK = 100
"""Looked at together. Where one of them cannot be, the others of its look are looked at one by one."""
LOGS_A_CALL = 200
"""So many a data plane answers for within its time for one call."""


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

    All are looked at together, without a lock; those that show a difference are looked at again one by one, and put
    right. A topic whose data plane does not answer is logged and passed over. Raises StoreUnavailable only.
    """
    with store.transaction() as tx:
        topic_ids = backing_logs.comparable_topics(tx, limit=limit, after=after, shards=shards)
    findings: list[Finding] = []
    for topic_id in _suspects(store, planes, topic_ids):
        try:
            findings += reconcile(store, planes, topic_id, dry_run=dry_run)
        except StoreUnavailable:
            raise
        except CleaveError as error:
            log.warning("topic not reconciled", topic_id=topic_id, error=str(error))
    return findings, topic_ids[-1] if len(topic_ids) == limit else None


def _suspects(store: Store, planes: Mapping[str, DataPlane], topic_ids: Sequence[int]) -> list[int]:
    """Those that differ, as far as one look at all of them tells; with them those that it could not see."""
    with store.transaction() as tx:
        rows = topics.get_topics(tx, topic_ids)
    suspects: list[int] = []
    for plane_name in sorted({row.data_plane for row in rows}):
        plane = planes.get(plane_name)
        if isinstance(plane, LayoutKeeper):
            continue  # its broker keeps layout and logs together; `services.mirror` follows it
        here = [row for row in rows if row.data_plane == plane_name]
        if not isinstance(plane, SetWiseDataPlane):
            suspects += [row.topic_id for row in here]  # what is wrong with it is said for each
            continue
        for some in _chunks(here, TOPICS_A_LOOK):
            suspects += _differing(store, plane, {row.topic_id: row.name for row in some})
    return sorted(suspects)


def _differing(store: Store, plane: SetWiseDataPlane, names: Mapping[int, str]) -> list[int]:
    try:
        seen = _look(store, plane, names)
    except StoreUnavailable:
        raise
    except CleaveError as error:
        log.info("topics looked at one by one", topics=len(names), error=str(error))
        return list(names)
    with store.transaction() as tx:
        books = backing_logs.read_books(tx, names)
    return [
        topic_id
        for topic_id in names
        if topic_id not in seen
        or topic_id not in books
        or compare(names[topic_id], plane.backing_topic, seen[topic_id], books[topic_id])
    ]


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
    if not isinstance(plane, SetWiseDataPlane):
        raise Unsupported(f"data plane {plane.name!r} of {topic.name} takes no calls about several logs")
    seen = _look(store, plane, {topic_id: topic.name}).get(topic_id)
    if seen is None:
        raise DataPlaneUnavailable(f"not every log of {topic.name} answered; looking again in a later run")
    with store.transaction() as tx:
        # Under the lock nobody reserves ids or commits; a dry run has only the order of its looks, books last.
        topics.get_topic(tx, topic_id, lock=not dry_run)
        books = backing_logs.read_books(tx, [topic_id])[topic_id]
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


def _look(store: Store, plane: SetWiseDataPlane, names: Mapping[int, str]) -> dict[int, PlaneView]:
    """The listing first, then the books without a lock to know which logs to look at one by one.

    `names` are the topics' by their ids. A topic with a log that did not answer is absent.
    """
    listed = plane.list_segments_of(list(names.values()))
    with store.transaction() as tx:
        books = backing_logs.read_books(tx, names)
    logs = [one for of_topic in books.values() for one in of_topic.logs]
    states = _states(plane, [one.backing_topic for one in logs])
    is_active = {one.backing_topic for one in logs if one.state is SegmentState.ACTIVE}
    cursors: dict[str, frozenset[str]] = {
        name: frozenset() for name, state in states.items() if state is LogState.OPEN and name in is_active
    }
    for some in _chunks(list(cursors), LOGS_A_CALL):
        cursors |= {name: frozenset(found) for name, found in plane.subscriptions_of(some).items()}
    # What is missing is looked at twice: a log may be on its way to another broker.
    states |= _states(plane, [one for one, state in states.items() if state is LogState.MISSING])
    return {
        topic_id: PlaneView(
            listed=tuple(listed[names[topic_id]]),
            states={one.segment_id: states[one.backing_topic] for one in of_topic.logs},
            cursors={
                one.segment_id: cursors[one.backing_topic]
                for one in of_topic.logs
                if one.backing_topic in cursors
            },
            books=of_topic,
        )
        for topic_id, of_topic in books.items()
        if all(one.backing_topic in states for one in of_topic.logs)
    }


def _states(plane: SetWiseDataPlane, backing_topics: Sequence[str]) -> dict[str, LogState]:
    return {
        name: state
        for some in _chunks(backing_topics, LOGS_A_CALL)
        for name, state in plane.states_of(some).items()
    }


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


def _chunks(many: Sequence[Some], size: int) -> Iterator[Sequence[Some]]:
    for first in range(0, len(many), size):
        yield many[first : first + size]
