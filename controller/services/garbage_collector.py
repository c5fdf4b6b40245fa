"""Garbage collection: intends to prune sealed segments that are past their retention and read to their end.

A segment goes when every subscription has read it to its end: the recorded ones, and those that applications made
directly on its log. What is marked as drained is drained, whatever a broker that has crashed remembers of acknowledgements.
And it goes only when each of its children has a position of every subscription, from which that one goes on. Ancestors go first or together with it, so that the order in which consumers are given the rest
never changes. What is pruned here is deleted later, through tombstones; nothing is deleted in this module.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller import telemetry
from controller.dataplane.base import MISSING_LOG, DataPlane, LogReport, LogState, SetWiseDataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import CleaveError, Conflict, Retryable, StoreUnavailable, Unsupported
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Origin
from controller.domain.segment import SegmentState
from controller.store import set_aside
from controller.store.journal import operations, topic_intents
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store
from controller.store.set_aside import SetAside
from controller.store.shards import Shards
from controller.store.topics import backing_logs, drains, gates, layouts, topics
from controller.store.topics.backing_logs import BackingLog, Books
from controller.store.topics.retention import ExpiredTopic, expired_topics

log = telemetry.get_logger(__name__)

DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class KeptSegment:
    """A segment past its retention that stays, and why; `segment_id` None: all of the topic's."""

    topic: str
    segment_id: int | None
    reason: str


@dataclass(slots=True)
class CollectionReport:
    """What one round did. `operation_ids` are the operations that prune `segments`; a dry run has none."""

    segments: dict[str, tuple[int, ...]] = field(default_factory=dict)
    operation_ids: list[int] = field(default_factory=list)
    kept: list[KeptSegment] = field(default_factory=list)
    next_after: int | None = None
    """Topic id to continue after; None when this round saw the last topic."""


def collect(
    store: Store,
    planes: Mapping[str, DataPlane],
    *,
    retention_minutes: float,
    limit: int = 500,
    after: int = 0,
    shards: Shards | None = None,
    actor: str = "garbage-collector",
    dry_run: bool = False,
) -> CollectionReport:
    """One round over up to `limit` topics with something expired.

    `retention_minutes` (negative: for ever) holds where a topic's property of that name says nothing. Raises
    StoreUnavailable only; whatever else fails keeps the topic's segments for the next round.
    """
    with store.transaction() as tx:
        expired = expired_topics(
            tx, default_minutes=retention_minutes, limit=limit, after=after, shards=shards
        )
    report = CollectionReport(next_after=expired[-1].topic_id if len(expired) == limit else None)
    unfit: list[SetAside] = []
    for topic in expired:
        try:
            _collect_topic(store, planes, topic, actor, dry_run, report)
        except StoreUnavailable:
            raise
        except CleaveError as error:
            report.kept.append(KeptSegment(topic.name, None, str(error)))
        except Exception as error:  # one topic's trouble must not keep the garbage of the others
            log.exception("garbage of a topic not collected", topic=topic.name)
            unfit.append(
                SetAside(f"topic {topic.topic_id}", f"no garbage is collected: {error}", topic.topic_id)
            )
            report.kept.append(KeptSegment(topic.name, None, f"{type(error).__name__}: {error}"))
    if unfit and not dry_run:
        with store.transaction() as tx:
            set_aside.note(tx, set_aside.Batch.MAINTENANCE, unfit)
    return report


def _collect_topic(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic: ExpiredTopic,
    actor: str,
    dry_run: bool,
    report: CollectionReport,
) -> None:
    plane = planes.get(topic.data_plane)
    if plane is None:
        raise Retryable(f"data plane {topic.data_plane!r} is not configured here; collect where it is")
    if isinstance(plane, LayoutKeeper):
        return  # its broker collects sealed segments by itself, and the mirror follows
    looking = _look(store, plane, topic)
    chosen = _choose(looking, topic, report.kept)
    if not chosen:
        return
    report.segments[topic.name] = chosen
    if dry_run:
        return
    chosen = _confirm(store, topic, chosen, looking)
    if not chosen:
        return
    # Fresh each time: an earlier prune of the same segments may have ended without one, when a mark was taken back. Of two
    # collectors at once the second is told that the segment is busy.
    key = f"prune/{topic.topic_id}/{chosen[0]}/{secrets.token_hex(8)}"
    request = Request(
        key, Origin.AUTO, actor, "retention passed and drained", deadline_seconds=DEADLINE_SECONDS
    )
    with store.transaction() as tx:
        intent = topic_intents.intend_prune(tx, topic.topic_id, chosen, request)
    report.operation_ids.append(intent.operation.operation_id)


def collect_segment(
    store: Store, planes: Mapping[str, DataPlane], topic: str, segment_id: int, request: Request
) -> Intent:
    """Intend to prune one sealed segment now, whatever its retention.

    Raises TopicNotFound, SegmentNotFound, SegmentBusy, Unsupported, or Conflict with the reason for which it stays: it is active,
    somebody has not read it to its end, or an ancestor is still there.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        if operations.find_by_request_key(tx, request.request_key) is not None:
            return topic_intents.intend_prune(tx, row.topic_id, [segment_id], request)
    plane = planes.get(row.data_plane)
    if plane is None or isinstance(plane, LayoutKeeper):
        raise Unsupported(
            f"segments of {topic} are collected by its broker, or where {row.data_plane!r} is configured"
        )
    one = ExpiredTopic(row.topic_id, row.name, row.data_plane, (segment_id,))
    looking = _look(store, plane, one)
    if looking.layout.segment(segment_id).state is SegmentState.ACTIVE:
        raise Conflict(f"segment {segment_id} of topic {topic} is active; split or merge it first")
    kept: list[KeptSegment] = []
    if not _choose(looking, one, kept) or not _confirm(store, one, [segment_id], looking):
        why = kept[0].reason if kept else "it is read again"
        raise Conflict(f"segment {segment_id} of topic {topic} stays: {why}")
    with store.transaction() as tx:
        return topic_intents.intend_prune(tx, row.topic_id, [segment_id], request)


def _look(store: Store, plane: DataPlane, topic: ExpiredTopic) -> _Looking:
    """Raises Retryable for a topic that is read by checkpoints, Unsupported, and as the data plane does."""
    if not isinstance(plane, SetWiseDataPlane):
        raise Unsupported(f"data plane {plane.name!r} of {topic.name} takes no calls about several logs")
    with store.transaction() as tx:
        layout = layouts.load_layout(tx, topic.topic_id)
        books = backing_logs.read_books(tx, [topic.topic_id])[topic.topic_id]
        done = {name: drains.drained(tx, topic.topic_id, name) for name in books.subscriptions}
        stock = gates.stock_subscriptions(tx, topic.topic_id)
    if books.has_checkpoints:
        raise Retryable("a checkpoint subscription may still return to any position")
    reports = plane.describe_logs([one.backing_topic for one in books.logs])
    return _Looking(plane, layout, books, done, stock, reports)


@dataclass(frozen=True, slots=True)
class _Looking:
    """One topic as the collector sees it. `done` has the segments that are marked as drained, by subscription."""

    plane: SetWiseDataPlane
    layout: SegmentLayout
    books: Books
    done: Mapping[str, Collection[int]]
    stock: Collection[str]
    """Subscriptions that standard consumers read. The gate keeper alone marks what they have drained."""
    reports: Mapping[str, LogReport]

    def unmarked(self, one: BackingLog) -> list[str]:
        """Recorded subscriptions for which nobody had marked it as drained."""
        return [name for name in self.books.expected_on(one) if one.segment_id not in self.done[name]]

    def keeps(self, one: BackingLog) -> str:
        """Why the segment stays; empty when nobody has anything left to read in it and everybody goes on in its children.

        Also empty where its log does not exist any more.
        """
        report = self.reports.get(one.backing_topic)
        if report is None:
            return "its log did not answer"
        if report.state is LogState.MISSING:  # checked twice: a log may be on its way to another broker
            state = self.plane.segment_state(one.backing_topic)
            return "" if state is LogState.MISSING else "its log was out of sight for a moment"
        recorded = self.books.expected_on(one)
        names = sorted({*recorded, *report.cursors} - self.books.deleting_subscriptions)
        for name in names:
            cursor = report.cursors.get(name)
            if cursor is None:
                return f"the cursor of subscription {name} is missing, so what it has read is unknown"
            if cursor.unread > 0 and one.segment_id not in self.done.get(name, ()):
                return f"subscription {name} has {cursor.unread} unread message(s)"
            if name in self.stock and one.segment_id not in self.done[name]:
                return (
                    f"the data plane has not written down yet that subscription {name} has read it to its end"
                )
        return self._without_position(one, names)

    def _without_position(self, one: BackingLog, names: Sequence[str]) -> str:
        """Which child a subscription could not go on in."""
        logs = {log.segment_id: log.backing_topic for log in self.books.logs}
        for child_id in self.layout.segment(one.segment_id).child_ids:
            if child_id in logs:
                there = self.reports.get(logs[child_id], MISSING_LOG).cursors
                missing = sorted({*names} - {*there})
                if missing:
                    return f"subscription {missing[0]} has no position in its child {child_id} yet"
        return ""


def _confirm(store: Store, topic: ExpiredTopic, chosen: Sequence[int], looking: _Looking) -> tuple[int, ...]:
    """Mark them drained, then look once more: a seek either shows in this look or takes the mark back. What was marked before is
    not marked again: a seek that has taken that mark back meanwhile keeps the segment.
    """
    logs = sorted(
        (one for one in looking.books.logs if one.segment_id in chosen), key=lambda one: one.segment_id
    )
    with store.transaction() as tx:
        for one in logs:
            for name in looking.unmarked(one):
                drains.mark_drained(tx, topic.topic_id, name, [one.segment_id])
    again = replace(looking, reports=looking.plane.describe_logs(list(looking.reports)))
    confirmed: list[int] = []
    for one in logs:
        if again.keeps(one):
            with store.transaction() as tx:
                for name in looking.unmarked(one):
                    drains.undrain(tx, topic.topic_id, name, [one.segment_id])
            break  # its descendants wait for it; the rest for the next round
        confirmed.append(one.segment_id)
    return tuple(confirmed)


def _choose(looking: _Looking, topic: ExpiredTopic, kept: list[KeptSegment]) -> tuple[int, ...]:
    """Those of the expired segments that may go now. Ids ascend, so parents are looked at before children."""
    chosen: set[int] = set()
    logs = {log.segment_id: log for log in looking.books.logs}
    for segment_id in topic.segment_ids:
        if segment_id not in logs:
            continue  # pruned since it was listed
        waiting_for = looking.layout.ancestors(segment_id) - chosen
        if waiting_for:
            reason = f"after its ancestor(s) {', '.join(map(str, sorted(waiting_for)))}"
        else:
            reason = looking.keeps(logs[segment_id])
        if reason:
            kept.append(KeptSegment(topic.name, segment_id, reason))
        else:
            chosen.add(segment_id)
    return tuple(sorted(chosen))
