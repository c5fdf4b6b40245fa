"""Divides a topic among consumers that store their own positions: each key in order, nothing acknowledged in
the data plane.

The group is a subscription of kind checkpoint. The leader of the topic assigns each whole segment to one
member, and assigns children when all their ancestors are read to their ends (`session`). The application
stores positions: each member has one value, its checkpoint. A member that receives a segment continues at the
position that the stored values of all members contain. A value's position of a segment is ranked by the
generation at which its member acquired the segment, so the later owner's position counts.

A member releases only stored positions: it releases a segment, or reports the segment as read to its end,
after the application has stored a checkpoint that says so (`kept`). If a member dies, its successor starts at
the last stored checkpoint.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from controller.client.arguments import checks_arguments
from controller.client.broken_log_reports import SuspectReports
from controller.client.checkpoint import Checkpoint, merged
from controller.client.checkpoint_consumer import (
    CheckpointBatch,
    CheckpointConsumer,
    SegmentStatus,
    instant_of,
)
from controller.client.closing import close_and_deregister
from controller.client.polling_consumer import PollingConsumer
from controller.client.position_reading import open_at, read_on
from controller.client.reader_slot import ReaderSlot
from controller.client.segment_readers import SegmentReaders
from controller.client.servers import Servers
from controller.client.session import Assignment, OwnedBucket, Session
from controller.dataplane.log_client import LogClient, Position, PositionReader
from controller.domain.errors import (
    Conflict,
    DataGone,
    DataPlaneUnavailable,
    SegmentNotFound,
    StoreUnavailable,
)
from controller.domain.hash_range import FULL_RANGE

KeptValues = Callable[[], Iterable[Checkpoint | bytes]]
"""Returns the newest stored checkpoint of each member, including members that no longer exist."""


@dataclass(slots=True)
class _Segment:
    """One ownership of a segment.

    `position` and `is_done` say how far the segment was delivered; `is_kept`, whether a stored checkpoint
    says the same.
    """

    buckets: tuple[OwnedBucket, ...]
    position: Position | None = None
    is_done: bool = False
    is_placed: bool = False
    """True if the starting position is known. Otherwise no checkpoint of this member says anything about the
    segment.
    """
    is_named: bool = False
    """True once a checkpoint of this member, which the application may store, has named the segment as unfinished."""
    is_kept: bool = False
    is_notified: bool = False
    """True once the application was notified, without an error, that other members wait for the segment."""

    @property
    def generation(self) -> int:
        """Generation at which this member acquired the segment."""
        return max(bucket.generation for bucket in self.buckets)

    @property
    def identity(self) -> frozenset[tuple[int, int, int]]:
        """Identity of this ownership: segment, bucket and generation of each of its buckets."""
        return frozenset(bucket.identity for bucket in self.buckets)

    @property
    def is_release_requested(self) -> bool:
        """True if the segment is to be released."""
        return any(bucket.release for bucket in self.buckets)

    @property
    def is_settled(self) -> bool:
        """True if no progress is lost when another member continues: all delivered messages are in a stored
        checkpoint, or none were delivered.
        """
        return self.is_kept or not self.is_placed


@checks_arguments
class CheckpointGroupConsumer(PollingConsumer[CheckpointBatch]):
    """One member of the group. For one thread, which must keep calling `receive` to stay in the group.

    `receive` returns the next messages of one segment. It raises FencedOut if another member registered under this name;
    TopicNotFound, SubscriptionNotFound if either was deleted, or another permanent refusal of a worker; DataGone if the
    next messages were deleted; the errors of `kept_values` and `on_wanted`; Conflict or InvalidInput for stored values
    from which the group cannot continue; DataPlaneUnavailable, or SegmentNotFound for a missing log, if there is nothing
    to read and a log was out of reach for longer than `patience_seconds`; Terminal if there is nothing to read and a log
    can never be read; StoreUnavailable if segments are assigned and no worker lists the group's segments for that long;
    InvalidInput after `close`. While only the leader is out of reach, the call returns None.
    """

    def __init__(
        self,
        servers: Servers,
        logs: LogClient,
        topic: str,
        group: str,
        name: str,
        kept_values: KeptValues,
        *,
        start: datetime | None = None,
        batch_messages: int = 500,
        patience_seconds: float = 30.0,
        on_wanted: Callable[[], None] = lambda: None,
    ) -> None:
        """Register the member `name` in the group, the subscription `group` of kind checkpoint. A second member with the same name
        replaces this member. A batch has at most `batch_messages` messages. `patience_seconds` bounds how long `receive` waits for a log
        out of reach, and how long the constructor waits for a worker that leads the topic.

        `kept_values` is called in the thread that calls `receive`, whenever segments are assigned to this member. `on_wanted` is called
        when other members wait for a segment whose position is not stored, in the thread that calls `receive` or `kept`. If one of these
        functions raises, the call of `receive` or `kept` raises the error. The next `receive` first returns messages of the other
        segments, if there are any; otherwise it calls the function again. An error that persists is therefore raised at least by every
        second `receive`, and withholds no messages of other segments.

        `start` is the position of segments that no stored value names: an instant with its time zone, which is compared with
        `published_at_ms` of the messages, or None for all stored messages. All members must give the same `start`.

        Raises NotFound, TopicNotLive, StoreUnavailable; Conflict if the subscription is not of kind checkpoint; InvalidInput for an
        invalid name or a start without a time zone; or another error by which a worker refuses the registration.
        """
        super().__init__(patience_seconds, DataPlaneUnavailable, StoreUnavailable, SegmentNotFound)
        self._start_ms = None if start is None else instant_of(start)
        self._logs, self._kept_values, self._on_wanted = logs, kept_values, on_wanted
        self.topic, self.group, self.name = topic, group, name
        self._batch_messages = batch_messages
        self._has_changed = threading.Event()
        self._reads_first = False
        """True after an error of `_follow`, so that an error that persists withholds no messages of other segments."""
        self._segments: dict[int, _Segment] = {}
        self._group_position: Checkpoint | None = None
        """Stored position of the group, as far as this member has read it."""
        self._released: set[tuple[int, int, int]] = set()
        """Released ownerships, which are not acquired again because the report of their release may be under
        way.
        """
        self._readers: SegmentReaders[PositionReader] = SegmentReaders(
            self._open, self._wakeup, SuspectReports(servers, topic)
        )
        self._session = Session(
            servers,
            topic,
            group,
            name,
            reads="CHECKPOINT",
            on_change=self._changed,
            on_lost=self._changed,
            patience_seconds=patience_seconds,
        )

    @property
    def segment_ids(self) -> tuple[int, ...]:
        """Ids of the segments that this member may deliver messages of."""
        return tuple(
            sorted(
                i
                for i, segment in self._segments.items()
                if not segment.is_release_requested and not segment.is_done
            )
        )

    def checkpoint(self) -> Checkpoint:
        """Return this member's position: behind all messages that `receive` has returned. Take the checkpoint when
        the application has processed these messages.

        The checkpoint also contains the last known positions of the other members, so that one stored value replaces
        the previous one and no position is lost. A segment whose starting position is not known yet is left out.
        Before the first `receive` no starting position is known, and the checkpoint contains no segments.
        """
        assignment = self._session.assignment
        group = self._group_position
        positions = dict(group.positions) if group else {}
        generations = dict(group.generations) if group else {}
        done = set(group.done) if group else set()
        for segment_id, segment in self._segments.items():
            if segment.is_placed:
                positions.pop(segment_id, None)
                generations.pop(segment_id, None)
                if segment.is_done:
                    done.add(segment_id)
                else:
                    positions[segment_id], generations[segment_id] = segment.position, segment.generation
                    segment.is_named = True
        epoch = max(group.epoch if group else 0, assignment.epoch if assignment else 0)
        return Checkpoint(self._session.topic_id, self.topic, epoch, positions, frozenset(done), generations)

    def kept(self, checkpoint: Checkpoint) -> None:
        """Note that the application has stored this checkpoint, and that `kept_values` returns it from now on.

        A segment of this member is stored if the checkpoint contains all messages of the segment that `receive` has
        returned. Stored segments that other members wait for are released, and stored segments that are read to their
        ends are reported to the leader as drained. If other members wait for segments that are not stored,
        `on_wanted` is called, once for each ownership; after an error it is called again later.

        Raises Conflict for a checkpoint of another topic, which changes nothing, and the errors of `on_wanted`.
        """
        self._note(checkpoint)  # a refused checkpoint marks no segment as stored
        for segment_id, segment in self._segments.items():
            if segment.is_placed and _covers(checkpoint, segment_id, segment):
                segment.is_kept = True
        self._release_stored()

    def holds(self, batch: CheckpointBatch) -> bool:
        """Return True if the newest assignment still contains this ownership of the segment, and the leader
        has responded recently. If False, the messages may be delivered again, to another member.
        """
        segment = self._segments.get(batch.segment_id)
        return segment is not None and segment is batch.origin and self._is_ours(segment)

    def has(self, batch: CheckpointBatch) -> bool:
        """Return True if the ownership that the batch came from still exists, as far as this member has
        followed its leader.
        """
        return self._segments.get(batch.segment_id) is batch.origin

    def why(self) -> tuple[SegmentStatus, ...]:
        """Return, ordered by segment id, one status for each segment that the group reads, with the reason why this
        member delivers no message of the segment at present. For a segment of another member, or of no member, the
        reason comes from the leader. The leader's list is requested at each call.

        Raises StoreUnavailable while no worker responds, and the error by which a worker refuses the request.
        """
        statuses: dict[int, SegmentStatus] = {}
        for row in self._session.why():
            segment_id, owner = row["segment_id"], row["owner"]
            if segment_id in self._segments:
                statuses[segment_id] = SegmentStatus(segment_id, self._reason(segment_id))
            else:
                reason = f"owned by {owner}" if row["reason"] == "owned" else row["reason"]
                statuses[segment_id] = SegmentStatus(segment_id, reason, owner, row["since"])
        return tuple(statuses[segment_id] for segment_id in sorted(statuses))

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Stop reading, and deregister this member. Other members continue at the stored checkpoints; messages behind
        the stored checkpoints are delivered to them again. Afterwards `receive` raises InvalidInput.

        If `leave` is True, other members take over at once. If `leave` is False, the member is not deregistered: a
        process that restarts under this name within the grace period keeps its segments. The call takes at most
        `timeout_seconds` (default: 30), but may take two seconds if the limit is shorter. Readers that are not closed
        by then are closed in the background. A fifth of the time, and at least a second, is reserved for the
        deregistration, which also happens after an interruption (KeyboardInterrupt).

        Raises InvalidInput, and closes nothing, for a time below 0 or above a day.
        """
        timing = self._begin_close(timeout_seconds)
        self._wakeup.set()  # ends a `receive` that waits
        close_and_deregister(
            f"member {self.name} of {self.topic}",
            timing,
            self._readers.close,
            lambda seconds: self._session.close(seconds, leave=leave),
        )

    def _described(self) -> str:
        return f"CheckpointGroupConsumer of {self.topic}"

    def _kind(self) -> str:
        return CheckpointConsumer.__name__

    def _before_poll(self) -> None:
        """Raise InvalidInput after `close`, or the reason why the session can never continue
        (`Session.demand_alive`).
        """
        super()._before_poll()
        self._session.demand_alive()

    # Following the leader.

    def _changed(self) -> None:
        """Note that the assignment or a segment has changed, and wake `receive`."""
        self._has_changed.set()
        self._wakeup.set()

    def _follow(self) -> None:
        """Make the held segments agree with the leader's assignment. A held segment whose ownership is not in the
        assignment is forgotten, with its position. Without an assignment all segments are forgotten. Whole segments
        (`_whole_segments`) that are not to be released are acquired, with the starting positions that `_place` sets.

        A held segment that is to be released is read no further. The segment is released once its position is stored,
        or at once if its starting position is not known yet. Until the position is stored, other members wait, and
        `on_wanted` is called, once. Buckets that are to be released, and whose segments are not held, are reported as
        released at once. Stored segments that are read to their ends are reported as drained.

        Raises the errors of `_place` and `on_wanted`. The caller repeats the call after an error.
        """
        assignment = self._session.assignment
        owned = _whole_segments(assignment)
        for segment_id, segment in list(self._segments.items()):
            buckets = owned.get(segment_id, ())
            if segment.identity != frozenset(bucket.identity for bucket in buckets):
                self._forget(segment_id)  # the segment belongs to another member, or to another ownership
            else:
                segment.buckets = buckets
        assigned = assignment.buckets if assignment else ()
        self._released &= {bucket.identity for bucket in assigned}
        added = {i: _Segment(buckets) for i, buckets in owned.items() if i not in self._segments}
        acquired = {
            i: segment
            for i, segment in added.items()
            if not segment.is_release_requested and not segment.identity & self._released
        }
        self._read_on()  # first, because after an error of `_place` the next poll reads
        if acquired:
            self._place(acquired)
        self._segments |= acquired
        kept_identities = {
            bucket.identity for segment in self._segments.values() for bucket in segment.buckets
        }
        released = [
            bucket
            for bucket in assigned
            if bucket.identity not in kept_identities
            and (bucket.release or bucket.identity in self._released)
        ]
        if released:  # this member has delivered no unstored message of these
            self._session.report_released(released)
        self._read_on()
        self._release_stored()

    def _place(self, segments: dict[int, _Segment]) -> None:
        """Set the starting position of each segment in `segments`, given by segment id, from the stored values of all
        members: call `kept_values`, and merge the values into the known position of the group. A segment that a value
        contains as read to its end is marked as done. A segment that no value names starts at the beginning of its
        log; with a start time the segment gets no position here, and `_open` looks the position up.

        Requests the group's segments from a worker first. Raises Conflict if the stored values have a position of a
        segment that the group has read to its end: to go back, the application must run a seek. Also raises the
        errors of `kept_values`, `Checkpoint.from_bytes`, `_note` and `Session.why`. After an error `segments` is
        unchanged.
        """
        to_read = {
            row["segment_id"] for row in self._session.why()
        }  # read before the values, which then cover every segment that is missing here
        values = [
            Checkpoint.from_bytes(value) if isinstance(value, bytes) else value
            for value in self._kept_values()
        ]
        for value in values:
            self._note(value)
        group = self._group_position
        unread = sorted(group.positions.keys() - to_read) if group is not None else []
        if unread:
            raise Conflict(
                f"segment(s) {', '.join(map(str, unread))} of {self.topic} are read to their ends by {self.group}, and the stored "
                f"checkpoints contain earlier positions; to go back run `cleave subscriptions seek {self.topic} {self.group} kept`"
            )
        for segment_id, segment in segments.items():
            if group is not None and segment_id in group.done:
                segment.is_done = segment.is_placed = segment.is_kept = True
            elif group is not None and segment_id in group.positions:
                segment.position = group.positions[segment_id]
                segment.is_placed = segment.is_kept = True
            elif self._start_ms is None:
                segment.is_placed = True

    def _note(self, checkpoint: Checkpoint) -> None:
        """Merge a stored checkpoint into the known position of the group. Raises Conflict for a checkpoint of
        another topic.
        """
        if checkpoint.topic_id != self._session.topic_id:
            raise Conflict(
                f"a stored checkpoint is of {checkpoint.topic} (topic {checkpoint.topic_id}), and {self.topic} is topic "
                f"{self._session.topic_id}; return the checkpoints of this group"
            )
        self._group_position = (
            checkpoint if self._group_position is None else merged([self._group_position, checkpoint])
        )

    def _read_on(self) -> None:
        """Make the readers follow exactly the held segments that are not at their ends and not to be
        released.
        """
        self._readers.follow(
            {
                i: segment.buckets[0].backing_topic
                for i, segment in self._segments.items()
                if not segment.is_done and not segment.is_release_requested
            }
        )

    def _forget(self, segment_id: int) -> None:
        """Stop reading the segment, and remove its ownership with the position. Its delivered messages no
        longer count for `holds`.
        """
        self._readers.drop(segment_id)
        del self._segments[segment_id]

    def _release_stored(self) -> None:
        """Release the segments that other members wait for, if their positions are stored or their starting positions
        are not known yet. Report the stored segments that are read to their ends to the leader as drained. Call
        `on_wanted`, once, if other members wait for segments whose positions are not stored, and no call of
        `on_wanted` for these segments has returned yet.

        The reports are sent in a background thread; `_follow` repeats them until the leader has acted on them. Raises
        the errors of `on_wanted`, after the releases and reports.
        """
        released: list[OwnedBucket] = []
        for segment_id, segment in list(self._segments.items()):
            if segment.is_release_requested and segment.is_settled:
                self._forget(segment_id)
                released.extend(segment.buckets)
                self._released |= segment.identity
        if released:
            self._session.report_released(released)
        drained = [
            segment.buckets[0] for segment in self._segments.values() if segment.is_done and segment.is_kept
        ]
        if drained:
            self._session.report_drained(drained)
        unstored = [
            segment
            for segment in self._segments.values()
            if segment.is_release_requested and not segment.is_notified
        ]
        if unstored:
            self._notify(unstored)

    def _notify(self, segments: list[_Segment]) -> None:
        """Call `on_wanted`, once for all the segments. After an error, which is raised, `_follow` repeats the call."""
        for segment in segments:  # first, because `on_wanted` may call `kept`
            segment.is_notified = True
        try:
            self._on_wanted()
        except BaseException:
            for segment in segments:
                segment.is_notified = False
            self._changed()
            raise

    # Reading.

    def _open(self, segment_reader: ReaderSlot[PositionReader]) -> PositionReader:
        """Open the reader of a segment. Runs in a background thread. For a segment that no stored value
        names, first looks up the position of the start time, and sets the segment's position to it. Raises
        DataPlaneUnavailable if the segment is no longer assigned to this member, so that its reading was
        dropped, and the errors of `LogClient.locate` and `open_at`.
        """
        segment = self._segments.get(segment_reader.segment_id)
        if segment is None:
            raise DataPlaneUnavailable(
                f"segment {segment_reader.segment_id} is no longer assigned to this member", 0.0
            )
        if not segment.is_placed:
            segment.position = self._logs.locate(segment_reader.backing_topic, self._start_ms)
            segment.is_placed = True
        return open_at(self._logs, segment_reader, segment.position)

    def _due_at(self) -> float:
        """Return the time of the next opening or poll, in `time.monotonic` seconds. Infinity while the member
        is paused or does not reach its leader.
        """
        return super()._due_at() if self._session.is_current else math.inf

    def _poll(self) -> CheckpointBatch | None:
        """Run one poll: follow the leader's assignment if it may have changed, and return the next batch
        (`_next_batch`). The poll after an error of `_follow` first reads, and follows only if no segment has
        messages.

        Return None while the leader is out of reach. If the session is lost by then (`Session.is_lost`), all segments
        are forgotten. Raises DataGone and the errors of `_follow`.
        """
        if self._readers.signal_all_if_due():
            self._has_changed.set()
        if not self._session.is_current:
            if self._session.is_lost:
                for segment_id in list(self._segments):
                    self._forget(segment_id)
            return None
        if self._reads_first:
            self._reads_first = False
            batch = self._next_batch()
            if batch is not None:
                return batch
        if self._has_changed.is_set():
            self._has_changed.clear()
            try:
                self._follow()
            except BaseException:
                self._has_changed.set()
                self._reads_first = True
                raise
        return self._next_batch()

    def _next_batch(self) -> CheckpointBatch | None:
        """Open the readers that are due, and read from the next segment, in rotation, that has messages. Return None
        if none has messages, and while paused. Raises DataGone.
        """
        if self._is_paused:
            return None
        self._readers.open_due()
        self._raise_if_deleted()
        for segment_reader, reader in self._readers.with_new_messages():
            batch = self._read(segment_reader, reader)
            if batch is not None:
                return batch
        return None

    def _raise_if_deleted(self) -> None:
        """Raise the DataGone of a segment whose next messages were deleted, if there is one."""
        for segment_reader in self._readers.all:
            if isinstance(segment_reader.error, DataGone):
                raise segment_reader.error

    def _read(
        self, segment_reader: ReaderSlot[PositionReader], reader: PositionReader
    ) -> CheckpointBatch | None:
        """Return the next batch of the segment, and advance the segment's position behind the batch. Return None if
        there are no messages at present, while a query of the log is in progress, and if the log is out of reach.
        Also return None if the segment may belong to another member after the read; the segment is then forgotten,
        and the messages are dropped.

        If the segment is read to its end, its reader is closed. If a stored value may name the segment (`_is_named`),
        the end is reported to the leader once a checkpoint with the end is stored. Otherwise the next poll reports
        the end. Raises DataGone, and the other errors of `read_on`.
        """
        segment = self._segments[segment_reader.segment_id]
        is_sealed = all(bucket.sealed for bucket in segment.buckets)
        page = read_on(self._readers, segment_reader, reader, self._batch_messages, is_sealed=is_sealed)
        if page is None:
            return None
        if not self._is_ours(segment):  # the read took long enough for another member to own the segment
            self._forget(segment_reader.segment_id)
            self._changed()
            return None
        before = segment.position
        if page.messages:
            segment.position, segment.is_kept = page.messages[-1].position, False
        if page.is_end:
            # A segment that no stored value names needs no stored end. Otherwise the value would name a
            # segment that the group no longer reads, which `_place` refuses.
            segment.is_done, segment.is_kept = True, not self._is_named(segment_reader.segment_id, segment)
            self._readers.drop(segment_reader.segment_id)
            if segment.is_kept:
                self._changed()
        if not page.messages:
            return None
        return CheckpointBatch(segment_reader.segment_id, page.messages, before, segment)

    def _is_named(self, segment_id: int, segment: _Segment) -> bool:
        """Return True if a value that is or may be stored names the segment as unfinished, also at its beginning, or
        if the segment has a position.
        """
        group = self._group_position
        is_stored = group is not None and segment_id in group.positions
        return is_stored or segment.is_named or segment.position is not None

    def _is_ours(self, segment: _Segment) -> bool:
        """Return True if the newest assignment contains every bucket of this very ownership, and the leader
        has responded recently.
        """
        assignment = self._session.assignment
        return (
            self._session.is_current and assignment is not None and segment.identity <= assignment.identities
        )

    def _reason(self, segment_id: int) -> str:
        """Return the reason why no message of a held segment is delivered at present, the first that applies:
        an unreachable leader, a release that waits for a stored checkpoint, the end of the segment, or the
        reason of its reader. `segment_id` must be held.
        """
        segment = self._segments[segment_id]
        if not self._session.is_current:
            return "the leader is out of reach: the segment may belong to another member"
        if segment.is_release_requested:
            return "being handed over once a checkpoint of its messages is stored"
        if segment.is_done:
            return "read to its end, once that is kept"
        return self._readers.reason(segment_id, is_paused=self._is_paused)


def _whole_segments(assignment: Assignment | None) -> dict[int, tuple[OwnedBucket, ...]]:
    """Return, by segment id, the buckets of each segment of which this member owns all buckets. A segment of
    which the member owns only some buckets is moving from another member. Empty without an assignment.
    """
    parts: dict[int, list[OwnedBucket]] = {}
    for bucket in assignment.buckets if assignment else ():
        parts.setdefault(bucket.segment_id, []).append(bucket)
    return {
        i: tuple(buckets)
        for i, buckets in parts.items()
        if sum(owned.bucket.width for owned in buckets) == FULL_RANGE.width
    }


def _covers(checkpoint: Checkpoint, segment_id: int, segment: _Segment) -> bool:
    """Return True if the checkpoint contains all that was delivered of the segment in this very ownership."""
    if segment.is_done:
        return segment_id in checkpoint.done
    return (
        checkpoint.generations.get(segment_id) == segment.generation
        and checkpoint.positions[segment_id] == segment.position
    )
