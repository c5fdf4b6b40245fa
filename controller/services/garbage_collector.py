"""Garbage collection: intends to prune sealed segments that have passed their retention and are read to their
end.

A segment is pruned when every subscription has read it to its end: the recorded subscriptions, and those that
applications created directly on its log. A drained mark counts even if a broker lost acknowledgements in a
crash. Each child of the segment must also have a position of every subscription, at which the subscription
continues. Ancestors are pruned before the segment or together with it, so that consumers are assigned the
remaining segments in the same order. The logs of pruned segments are deleted later, through deletion entries;
this module deletes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from controller import telemetry
from controller.dataplane.base import MISSING_LOG, DataPlane, LogReport, LogState, SetWiseDataPlane
from controller.dataplane.gates import GatedDataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import CleaveError, Conflict, Retryable, StoreUnavailable, Unsupported
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Origin
from controller.domain.segment import SegmentState
from controller.domain.whole_numbers import whole
from controller.repeating import contained
from controller.store import set_aside
from controller.store.journal import operations, topic_intents
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store
from controller.store.set_aside import SetAside
from controller.store.shards import Shards
from controller.store.topics import backing_logs, drains, gates, layouts, topics
from controller.store.topics.backing_logs import BackingLog, ExpectedLogs
from controller.store.topics.retention import ExpiredTopic, expired_topics

log = telemetry.get_logger(__name__)

DEADLINE_SECONDS = 60.0
"""Seconds after which a prune that has not been committed is aborted."""
NAMED_ANCESTORS = 3
"""Maximum number of ancestors that the reason to keep a segment names."""


@dataclass(frozen=True, slots=True)
class KeptSegment:
    """A segment past its retention that is kept, and the reason; `segment_id` None stands for all such
    segments of the topic.
    """

    topic: str
    segment_id: int | None
    reason: str


@dataclass(slots=True)
class CollectionReport:
    """Result of one round. `segments` are, by topic, the segments that `operation_ids` prune. A dry run has no
    operations; its `segments` are those that may be pruned according to the only reading of their logs.
    """

    segments: dict[str, tuple[int, ...]] = field(default_factory=dict)
    operation_ids: list[int] = field(default_factory=list)
    kept: list[KeptSegment] = field(default_factory=list)
    next_after: int | None = None
    """Topic id after which the next round continues; None if this round reached the last topic."""


def collect(
    store: Store,
    planes: Mapping[str, DataPlane],
    *,
    retention_minutes: float,
    limit: int = 500,
    after: int = 0,
    shards: Shards | None = None,
    dry_run: bool = False,
) -> CollectionReport:
    """Run one round: for each topic with sealed segments that may be pruned, intend an operation that prunes them.
    Return the ids of the operations, the segments that they prune, and the segments past their retention that are
    kept, with the reasons. `next_after` of the result is the value of `after` for the next round; None if this round
    reached the last topic.

    The round covers up to `limit` live topics with an id above `after` that have segments past their retention. Held
    topics and unverified topics, whose logs are still to be compared with the journal, are left out. A topic whose
    broker keeps the layout counts, but nothing is done or reported. `shards` restricts the topics; None: all.
    `retention_minutes` counts from the seal, and applies to topics without a property of that name; a negative value
    keeps segments for ever.

    Before an operation is intended, its segments are marked as drained for every recorded subscription. If a second
    reading of the logs shows that a segment must be kept, the marks that were added to the segment are removed. A dry
    run (`dry_run`) writes nothing: its result has the segments that would be pruned according to a single reading of
    the logs, and no operations.

    Raises InvalidInput for a `limit` below 1; StoreUnavailable at any time; and any other error of
    `Store.transaction` that occurs while the topics are listed or unexpected errors are recorded. The operations that
    were intended before stay. Any other error keeps the segments of its topic until the next round, and is a reason
    in the result. An unexpected error (not a CleaveError) is also logged and, except in a dry run, recorded in the
    view `inspect.set_aside`.
    """
    whole(limit, "limit", 1)
    expired = store.in_transaction(
        expired_topics, default_minutes=retention_minutes, limit=limit, after=after, shards=shards
    )
    report = CollectionReport(next_after=expired[-1].topic_id if len(expired) == limit else None)
    set_aside_topics: list[SetAside] = []
    for topic in expired:
        try:
            _collect_topic(store, planes, topic, dry_run, report)
        except StoreUnavailable:
            raise
        except CleaveError as error:
            report.kept.append(KeptSegment(topic.name, None, str(error)))
        except Exception as error:  # An error of one topic must not keep the garbage of the other topics.
            log.exception("garbage of a topic not collected", topic=topic.name)
            set_aside_topics.append(
                SetAside(f"topic {topic.topic_id}", f"no garbage is collected: {error}", topic.topic_id)
            )
            report.kept.append(KeptSegment(topic.name, None, f"{type(error).__name__}: {error}"))
    if set_aside_topics and not dry_run:
        store.in_transaction(set_aside.note, set_aside.Batch.MAINTENANCE, set_aside_topics)
    return report


def _collect_topic(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic: ExpiredTopic,
    dry_run: bool,
    report: CollectionReport,
) -> None:
    """Intend the prune of those expired segments of the topic that may be pruned. Add these segments, the operation,
    and the segments that are kept to `report`. The segments are marked as drained for every recorded subscription
    first; the marks of segments that turn out to be kept are removed again. Subscriptions that have unread messages in
    kept segments skip the barriers there, which counts in the next round; an error of this is logged. A dry run writes
    nothing and adds no operation. Does nothing if a broker keeps the layout.

    Raises Retryable if the data plane is not configured here, the topic has a checkpoint subscription or no log of the
    topic exists; Unsupported if the data plane cannot describe logs; SegmentBusy, Conflict, TopicNotLive and TopicHeld
    for concurrent changes; and the errors of the data plane and of `Store.transaction`.
    """
    plane = planes.get(topic.data_plane)
    if plane is None:
        raise Retryable(f"data plane {topic.data_plane!r} is not configured here; collect where it is")
    if isinstance(plane, LayoutKeeper):
        return  # The topic's broker collects sealed segments itself, and the mirror follows.
    view = _inspect(store, plane, topic)
    chosen = _choose(view, topic, report.kept)
    if not dry_run:
        with contained(log, "barriers not skipped", topic=topic.name):
            _skip_barriers(view, topic, chosen)
    if not chosen:
        return
    if dry_run:
        report.segments[topic.name] = chosen
        return
    chosen = _confirm(store, topic, chosen, view, report.kept)
    if not chosen:
        return
    # The key is unique for each attempt: an earlier prune of the same segments may have ended without
    # pruning, because a drained mark was removed. If two collectors run at once, the second one gets
    # SegmentBusy.
    key = f"prune/{topic.topic_id}/{chosen[0]}/{secrets.token_hex(8)}"
    request = Request(
        key,
        Origin.AUTO,
        "garbage-collector",
        "retention passed and drained",
        deadline_seconds=DEADLINE_SECONDS,
    )
    intent = store.in_transaction(topic_intents.intend_prune, topic.topic_id, chosen, request)
    report.segments[topic.name] = chosen
    report.operation_ids.append(intent.operation.operation_id)


def collect_segment(
    store: Store, planes: Mapping[str, DataPlane], topic: str, segment_id: int, request: Request
) -> Intent:
    """Intend to prune one sealed segment, regardless of its retention, and return the intent. The operation prunes
    the segment later. The segment is marked as drained for each recorded subscription first. If the segment must be
    kept, these marks are removed; if only the intent is refused, they stay. Subscriptions that have unread messages in the
    segment skip its barrier before. A repeated request key returns its first intent and changes nothing.

    Raises Conflict with the reason why the segment is kept: it is active, a subscription has not read it to its end
    or has no position in a child, its log did not answer, or one of its ancestors still exists. Raises Conflict also
    if the request key was used for another topic, segment or kind of request.

    Raises TopicNotFound; TopicNotLive; TopicHeld; SegmentNotFound, also for a pruned segment; SegmentBusy;
    Unsupported if the data plane is not configured here, keeps layouts or cannot describe logs; Retryable if the
    topic has a checkpoint subscription or no log of the topic exists; and the errors of the data plane.
    """
    with store.transaction() as tx:
        row = topics.find_topic(tx, topic)
        if operations.find_by_request_key(tx, request.request_key) is not None:
            return topic_intents.intend_prune(tx, row.topic_id, [segment_id], request)
    plane = planes.get(row.data_plane)
    if plane is None or isinstance(plane, LayoutKeeper):
        raise Unsupported(
            f"segments of {topic} are collected by its broker, or by an installation that configures {row.data_plane!r}"
        )
    expired = ExpiredTopic(row.topic_id, row.name, row.data_plane, (segment_id,))
    view = _inspect(store, plane, expired)
    if view.layout.segment(segment_id).state is SegmentState.ACTIVE:
        raise Conflict(f"segment {segment_id} of topic {topic} is active; split or merge it first")
    if _skip_barriers(view, expired, ()):
        view = _inspect(store, plane, expired)
    kept_segments: list[KeptSegment] = []
    if not _choose(view, expired, kept_segments) or not _confirm(
        store, expired, [segment_id], view, kept_segments
    ):
        reason = kept_segments[0].reason if kept_segments else "its log is no longer recorded"
        raise Conflict(f"segment {segment_id} of topic {topic} is kept: {reason}")
    return store.in_transaction(topic_intents.intend_prune, row.topic_id, [segment_id], request)


def _inspect(store: Store, plane: DataPlane, topic: ExpiredTopic) -> _TopicView:
    """Read the topic's layout, expected logs, drained segments and subscriptions from the database, and the reports on
    its logs from the data plane. A log that did not answer has no report. Nothing is changed. Raises TopicNotFound;
    Retryable for a topic with checkpoint subscriptions, or if no log of the topic exists; Unsupported if the data plane
    cannot describe logs; and the errors of the data plane.
    """
    if not isinstance(plane, SetWiseDataPlane):
        raise Unsupported(
            f"data plane {plane.name!r} of {topic.name} cannot describe several logs in one call"
        )
    with store.transaction() as tx:
        layout = layouts.load_layout(tx, topic.topic_id)
        metadata = backing_logs.read_expected_logs(tx, [topic.topic_id])[topic.topic_id]
        drained_ids = {name: drains.drained(tx, topic.topic_id, name) for name in metadata.subscriptions}
        stock = gates.stock_subscriptions(tx, topic.topic_id)
    if metadata.has_checkpoints:
        raise Retryable("a checkpoint subscription may still return to any position")
    reports = plane.describe_logs([log.backing_topic for log in metadata.logs])
    if all(reports.get(log.backing_topic) == MISSING_LOG for log in metadata.logs):
        # A wrong address looks like this. Unread logs would count as read, and be deleted where they are.
        raise Retryable(
            f"none of the {len(metadata.logs)} logs of {topic.name} is on its data plane: check that the address names the cluster of "
            "the logs"
        )
    logs = {log.segment_id: log for log in metadata.logs}
    return _TopicView(plane, layout, metadata, logs, drained_ids, stock, reports)


@dataclass(frozen=True, slots=True)
class _TopicView:
    """One topic as the collector sees it. `logs` holds the logs of `metadata` by segment id; `drained_ids` the ids of
    the segments that are marked as drained, by subscription; `reports` the reports on the logs, by backing topic. A
    log that did not respond has no report.
    """

    plane: SetWiseDataPlane
    layout: SegmentLayout
    metadata: ExpectedLogs
    logs: Mapping[int, BackingLog]
    drained_ids: Mapping[str, Collection[int]]
    stock: Collection[str]
    """Subscriptions that standard consumers read. Only the gate keeper marks segments as drained for them."""
    reports: Mapping[str, LogReport]

    def reason_to_keep(self, log: BackingLog) -> str:
        """Return the reason to keep the segment of `log`, as a clause for messages; empty if the segment may be
        pruned. It may be pruned if no subscription has unread messages in its log, and each subscription has a
        position in the logs of all its children. It may also be pruned if its log does not exist, which is read a
        second time.

        Subscriptions that applications created on the log count; subscriptions that are being deleted do not. Unread
        messages do not count if the segment is marked as drained for the subscription. For a subscription of standard
        consumers, this mark is required. The segment is kept if its log did not answer, or lacks the cursor of a
        recorded subscription. Raises the errors of the data plane.
        """
        report = self.reports.get(log.backing_topic)
        if report is None:
            return "its log did not answer"
        if report.state is LogState.MISSING:
            # The state is read a second time, because a log may be moving to another broker.
            state = self.plane.segment_state(log.backing_topic)
            return "" if state is LogState.MISSING else "its log could not be seen for a moment"
        recorded = self.metadata.expected_on(log)
        names = sorted({*recorded, *report.cursors} - self.metadata.deleting_subscriptions)
        for name in names:
            cursor = report.cursors.get(name)
            if cursor is None:
                return f"the cursor of subscription {name} is missing, so what it has read is unknown"
            if cursor.unread > 0 and log.segment_id not in self.drained_ids.get(name, ()):
                return f"subscription {name} has {cursor.unread} unread message(s)"
            if name in self.stock and log.segment_id not in self.drained_ids[name]:
                return f"the data plane has not stored yet that subscription {name} has read it to its end"
        return self._without_position(log, names)

    def _without_position(self, log: BackingLog, names: Sequence[str]) -> str:
        """Return a clause for messages that names a child of the segment of `log`, and a subscription of `names` that
        has no position in the log of this child. Empty if every subscription has a position in every child. If the
        log of a child did not answer, no subscription has a position there. Pruned children are not checked.
        """
        for child_id in self.layout.segment(log.segment_id).child_ids:
            if child_id in self.logs:
                child_cursors = self.reports.get(self.logs[child_id].backing_topic, MISSING_LOG).cursors
                missing = sorted({*names} - {*child_cursors})
                if missing:
                    return f"subscription {missing[0]} has no position in its child {child_id} yet"
        return ""


def _confirm(
    store: Store,
    topic: ExpiredTopic,
    chosen: Sequence[int],
    view: _TopicView,
    kept_segments: list[KeptSegment],
) -> tuple[int, ...]:
    """Mark the `chosen` segments as drained for each recorded subscription, and then read the topic's logs again.
    Return the ids of the segments that may be pruned, ascending. Add the other segments with their reasons to
    `kept_segments`.

    From the first segment that must be kept on, all later segments are kept too, because they may be its descendants,
    and the marks that this call has added to them are removed. If the data plane raises an error, the marks of the
    segments that were not yet confirmed are removed, and the error is raised.

    A concurrent seek either is visible in the second reading, or removes the mark. A segment that was marked before
    the call is not marked again. If a seek removes such a mark in the meantime, the id is returned, and the prune is
    refused or keeps the segment.
    """
    logs = [view.logs[segment_id] for segment_id in sorted(chosen)]
    with store.transaction() as tx:
        for log in logs:
            for name in view.metadata.expected_on(log):
                drains.mark_drained(tx, topic.topic_id, name, [log.segment_id])
    confirmed: list[int] = []
    reason = ""
    try:
        second_view = replace(view, reports=view.plane.describe_logs(list(view.reports)))
        for log in logs:
            reason = second_view.reason_to_keep(log)
            if reason:
                break
            confirmed.append(log.segment_id)
    finally:
        _remove_marks(store, topic, view, logs[len(confirmed) :])
    if reason:
        first, *later = logs[len(confirmed) :]
        kept_segments.append(KeptSegment(topic.name, first.segment_id, reason))
        # The descendants of this segment wait for it; the next round checks them.
        waiting = f"it waits for segment {first.segment_id}, which is kept"
        kept_segments += [KeptSegment(topic.name, log.segment_id, waiting) for log in later]
    return tuple(confirmed)


def _remove_marks(store: Store, topic: ExpiredTopic, view: _TopicView, logs: Sequence[BackingLog]) -> None:
    """Remove the drained marks that `_confirm` has added to the segments of `logs`. `view` was read before the marks
    were added, so marks that existed before stay. Does nothing without logs. Raises the errors of
    `Store.transaction`.
    """
    if logs:
        with store.transaction() as tx:
            for log in logs:
                for name in view.metadata.expected_on(log):
                    drains.undrain(tx, topic.topic_id, name, [log.segment_id])


def _choose(view: _TopicView, topic: ExpiredTopic, kept_segments: list[KeptSegment]) -> tuple[int, ...]:
    """Return the ids of those segments of `topic.segment_ids` that may be pruned according to `view`, ascending. Add
    each other segment with its reason to `kept_segments`. A segment is also kept if one of its ancestors remains. A
    segment that was pruned in the meantime is neither returned nor added. Parents are checked before their children,
    because ids ascend. Raises the errors of the data plane.
    """
    chosen: set[int] = set()
    # A segment without a log was pruned after it was listed.
    expired = {*topic.segment_ids} & view.logs.keys()
    obstacles: dict[int, list[int]] = {}
    for segment_id in sorted(view.layout.segments):
        waiting_for = obstacles[segment_id] = _oldest_remaining(view.layout, segment_id, chosen, obstacles)
        if segment_id not in expired:
            continue
        if waiting_for:
            named = ", ".join(map(str, waiting_for[:NAMED_ANCESTORS]))
            others = " and others" if len(waiting_for) > NAMED_ANCESTORS else ""
            reason = f"it waits for its ancestor(s) {named}{others}"
        else:
            reason = view.reason_to_keep(view.logs[segment_id])
        if reason:
            kept_segments.append(KeptSegment(topic.name, segment_id, reason))
        else:
            chosen.add(segment_id)
    return tuple(sorted(chosen))


def _skip_barriers(view: _TopicView, topic: ExpiredTopic, chosen: Collection[int]) -> bool:
    """Make the subscriptions that have unread messages in kept segments of `topic.segment_ids` skip the barriers there,
    unless their gates are closed: standard consumers do not acknowledge the barrier. Only segments whose parents are all
    in `chosen` or pruned are treated; the others follow in later rounds. Return True if there was such a subscription.
    Does nothing on a data plane without gates. Raises the errors of the data plane.
    """
    if not isinstance(view.plane, GatedDataPlane):
        return False
    unread = [
        (view.logs[i].backing_topic, name)
        for i in sorted({*topic.segment_ids} & view.logs.keys() - {*chosen})
        if view.layout.segments.keys() & {*view.layout.segment(i).parent_ids} <= {*chosen}
        for name, cursor in view.reports.get(view.logs[i].backing_topic, MISSING_LOG).cursors.items()
        if cursor.unread > 0
    ]
    for backing_topic, name in unread:
        view.plane.skip_barrier(backing_topic, name)
    return bool(unread)


def _oldest_remaining(
    layout: SegmentLayout, segment_id: int, chosen: Collection[int], obstacles: Mapping[int, Sequence[int]]
) -> list[int]:
    """Return the lowest ids, at most `NAMED_ANCESTORS` + 1, of the ancestors of the segment that are in the layout and
    not in `chosen`. `obstacles` has the result for each parent; the ancestors of a chosen parent are all chosen. So
    the call does not walk through the ancestry, which may be as long as the history of the topic.
    """
    parents = [i for i in layout.segment(segment_id).parent_ids if i in layout.segments and i not in chosen]
    return sorted({*parents, *chain.from_iterable(obstacles[i] for i in parents)})[: NAMED_ANCESTORS + 1]
