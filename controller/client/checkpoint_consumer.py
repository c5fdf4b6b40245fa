"""Reads a topic in the order of each key for an application that stores its own position. Nothing is
acknowledged in the data plane.

One consumer reads every segment. The children of a segment are read when the segment and all its ancestors
are read to their ends; this module enforces the order, because there is no leader. `checkpoint` returns a
position in every segment of the newest layout that the consumer knows, and a consumer that starts with it
continues exactly there. The consumer waits for a segment out of reach, because no substitute for an unknown
position is safe. If messages were deleted before they were read, the consumer raises DataGone.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from controller.client.arguments import checks_arguments
from controller.client.broken_log_reports import SuspectReports
from controller.client.checkpoint import Checkpoint
from controller.client.closing import close_and_deregister
from controller.client.polling_consumer import PollingConsumer
from controller.client.position_reading import open_at, read_on
from controller.client.reader_slot import ReaderSlot
from controller.client.retry import retry_for
from controller.client.segment_lists import ListedSegment, SegmentList, SegmentWatch
from controller.client.segment_readers import SegmentReaders
from controller.client.servers import Servers
from controller.clock import to_ms
from controller.dataplane.log_client import LogClient, LogMessage, Position, PositionReader
from controller.domain.errors import (
    Conflict,
    DataGone,
    DataPlaneUnavailable,
    InvalidInput,
    SegmentNotFound,
    StoreUnavailable,
)

PARALLEL_LOCATES = 4
"""Number of segments whose positions are looked up at once. All are needed, so the consumer waits for a
lookup that hangs.
"""
MOST_LOOKS = 5
"""Number of times a starting consumer requests the layout when segments disappear while it looks up its
positions.
"""


class Start(StrEnum):
    """Position at which a consumer without a checkpoint begins."""

    EARLIEST = "earliest"
    """The first message that the topic still stores."""
    LATEST = "latest"
    """The first message that is published after the start."""


@dataclass(frozen=True, slots=True)
class CheckpointBatch:
    """Messages of one segment, in order; at least one message."""

    segment_id: int
    messages: Sequence[LogMessage]
    before: Position | None
    """Position in the segment before the first message; None: the beginning of the segment."""
    origin: object = None
    """In a group, the ownership that the messages came from."""


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """The reason why no message of a segment is delivered at present."""

    segment_id: int
    """Segment of the topic."""
    reason: str
    """Why no message comes, in words."""
    holder: str | None = None
    """Member of the group that the segment waits for."""
    since: str | None = None
    """Time at which the reason began, in ISO 8601; set if the segment belongs to another member or to
    none.
    """


@checks_arguments
class CheckpointConsumer(PollingConsumer[CheckpointBatch]):
    """Consumer of all segments of a topic. For one thread; any thread may call `pause` and `resume`.

    `receive` returns the next messages of one segment; the position of the consumer is then behind these messages. It
    raises DataGone if the next messages were deleted; TopicNotFound, or another refusal of a worker that lists the
    segments; DataPlaneUnavailable, or SegmentNotFound for a missing log, if there is nothing to read and a segment was
    out of reach for longer than `patience_seconds`; Terminal if there is nothing to read and a segment can never be
    read; InvalidInput after `close`.
    """

    def __init__(
        self,
        servers: Servers,
        logs: LogClient,
        topic: str,
        start: Checkpoint | bytes | Start | datetime,
        *,
        batch_messages: int = 500,
        patience_seconds: float = 30.0,
    ) -> None:
        """Start at `start`: a checkpoint or its bytes; EARLIEST or LATEST; or an instant with its time zone, which is
        compared with `published_at_ms` of the messages. For a start without a checkpoint, the constructor looks up
        the position in every segment, so that `checkpoint` contains all positions at once.

        A batch has at most `batch_messages` messages. `patience_seconds` bounds three waits: the constructor's wait
        for a worker, the constructor's wait for each segment out of reach, and the wait of `receive` for a segment
        out of reach.

        Raises DataPlaneUnavailable or StoreUnavailable after that time; NotFound; TopicNotLive; DataGone, Conflict or
        InvalidInput for a checkpoint from which the consumer cannot continue; InvalidInput for an instant without a
        time zone and for an invalid topic name. After an error nothing stays open.
        """
        super().__init__(patience_seconds, DataPlaneUnavailable, StoreUnavailable, SegmentNotFound)
        self._logs, self._batch_messages, self._patience_seconds = logs, batch_messages, patience_seconds
        self._positions: dict[int, Position | None] = {}
        self._done: set[int] = set()
        self._segments: dict[int, ListedSegment] = {}
        """The segments of the newest layout, and segments that left the layout before they were read to their
        ends.
        """
        self._parents: dict[int, frozenset[int]] = {}
        self._watch = retry_for(
            lambda: SegmentWatch(servers, topic, on_change=self._wakeup.set), seconds=patience_seconds
        )
        self._readers: SegmentReaders[PositionReader] = SegmentReaders(
            self._open, self._wakeup, SuspectReports(servers, topic)
        )
        try:
            self._begin(Checkpoint.from_bytes(start) if isinstance(start, bytes) else start)
        except BaseException:
            self.close()
            raise

    def checkpoint(self) -> Checkpoint:
        """Return the position of this consumer: behind all messages that `receive` has returned. Take it when
        the application has processed them.
        """
        layout = self._layout
        return Checkpoint(
            layout.topic_id, layout.topic, layout.epoch, dict(self._positions), frozenset(self._done)
        )

    def restore(self, checkpoint: Checkpoint | bytes) -> None:
        """Continue from `checkpoint` in place of the present position, like a new consumer: request the layout, close
        the readers, and open other readers later.

        Raises the errors of the constructor. After an error the position and the readers are unchanged.
        """
        self._begin(Checkpoint.from_bytes(checkpoint) if isinstance(checkpoint, bytes) else checkpoint)

    def why(self) -> tuple[SegmentStatus, ...]:
        """Return for each segment that is not read to its end why no message of it is delivered."""
        return tuple(
            SegmentStatus(segment_id, self._reason(segment_id)) for segment_id in sorted(self._positions)
        )

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:  # noqa: ARG002
        """Stop reading, and close the readers within `timeout_seconds` (default: 30). With a shorter limit than two
        seconds the call may take up to two seconds. Readers that are not closed by then are closed in the background,
        which is logged. Afterwards `receive` raises InvalidInput. Raises InvalidInput, and closes nothing, for a time
        below 0 or above a day.

        Nothing is acknowledged, and no other consumer waits for this consumer. `leave` has no effect; the parameter
        exists so that consumers of all kinds are closed in the same way.
        """
        timing = self._begin_close(timeout_seconds)
        self._wakeup.set()  # ends a `receive` that waits
        close_and_deregister(
            f"consumer of {self._watch.current.topic}",
            timing,
            self._readers.close,
            lambda _seconds: self._watch.close(),
        )

    def _described(self) -> str:
        return f"CheckpointConsumer of {self._watch.current.topic}"

    # Starting position.

    def _begin(self, start: Checkpoint | Start | datetime) -> None:
        """Request the layout, and start at `start` in all segments. The present readers are closed, and other readers
        are opened by later polls. Raises the errors of `_places`, and InvalidInput for an instant without a time
        zone. After an error the readers and all positions are unchanged.
        """
        if isinstance(start, datetime):
            instant_of(start)
        segments, positions, done = self._places(start)
        self._readers.follow({})
        self._positions, self._done = positions, done
        self._segments, self._parents = {}, {}
        self._adopt(segments)

    def _places(
        self, start: Checkpoint | Start | datetime
    ) -> tuple[SegmentList, dict[int, Position | None], set[int]]:
        """Request the current list of segments, and return it with the position of `start` by segment id,
        None for the beginning of the segment, and the ids of the done segments. If a segment disappears
        meanwhile, request the list again, up to `MOST_LOOKS` times in all; then SegmentNotFound is raised.
        Raises the errors of `SegmentWatch.ask`, `restored` and `_located`.
        """
        for attempt in range(MOST_LOOKS):
            segments = retry_for(self._watch.ask, seconds=self._patience_seconds)
            try:
                if isinstance(start, Checkpoint):
                    return segments, *restored(start, segments)
                return segments, *self._located(start, segments)
            except SegmentNotFound:  # the segment was pruned a moment ago
                if attempt + 1 == MOST_LOOKS:
                    raise
        raise AssertionError("unreachable")

    def _located(
        self, start: Start | datetime, layout: SegmentList
    ) -> tuple[dict[int, Position | None], set[int]]:
        """Look up the position of `start` in each segment of the layout. Return the positions by segment id, and the
        ids of the segments that count as done, for which no position is looked up: the sealed segments if `start` is
        LATEST, otherwise none.

        The lookups run in parallel. Each lookup is retried for `patience_seconds`; then DataPlaneUnavailable is
        raised. Raises SegmentNotFound for a missing log, and InvalidInput for an instant without a time zone.
        """
        done = {i for i, segment in layout.segments.items() if start is Start.LATEST and segment.is_sealed}
        instant_ms = (
            instant_of(start) if isinstance(start, datetime) else 0 if start is Start.EARLIEST else None
        )
        unread = [segment for i, segment in sorted(layout.segments.items()) if i not in done]

        def locate(segment: ListedSegment) -> Position:
            return retry_for(
                lambda: self._logs.locate(segment.backing_topic, instant_ms), seconds=self._patience_seconds
            )

        with ThreadPoolExecutor(PARALLEL_LOCATES, thread_name_prefix="cleave-locate") as threads:
            positions = list(threads.map(locate, unread))
        return {segment.segment_id: at for segment, at in zip(unread, positions, strict=True)}, done

    # Following the layout.

    def _adopt(self, layout: SegmentList) -> None:
        """Make `layout` the known layout, and read the segments whose ancestors are all read to their ends. Segments
        that are new in the layout are read from their beginning.

        A segment that left the layout is forgotten if it is done. Otherwise the segment is still read to its end, and
        all later segments that share keys with it wait for that end.
        """
        for segment_id in layout.segments.keys() - self._positions.keys() - self._done:
            self._positions[segment_id] = None
        self._done &= layout.segments.keys()
        departed_ids = self._positions.keys() - layout.segments.keys()
        departed = {i: segment for i, segment in self._segments.items() if i in departed_ids}
        self._segments = {**departed, **layout.segments}
        links = {i: self._parents.get(i, frozenset()) for i in self._segments}
        for segment_id, segment in layout.segments.items():
            links[segment_id] |= {
                *segment.parent_ids,
                *(i for i, departed_segment in departed.items() if _follows(segment, departed_segment)),
            }
        self._parents = links
        self._layout = layout
        self._follow()

    def _follow(self) -> None:
        """Make the readers follow exactly the segments that are not done and whose ancestors are all read to their
        ends. Readers of other segments are closed in the background; missing readers are opened by later polls.
        """
        waits: dict[int, bool] = {}
        for segment_id in sorted(self._segments):
            parents = self._parents[segment_id]
            waits[segment_id] = any(
                parent in self._positions or waits.get(parent, False) for parent in parents
            )
        self._readers.follow({i: self._segments[i].backing_topic for i in self._positions if not waits[i]})

    def _waits_for(self, segment_id: int) -> list[int]:
        """Return the ids of the ancestors that are not read to their ends, in ascending order. An unknown
        ancestor was pruned long ago, and counts as done.
        """
        checked: set[int] = set()
        unchecked = set(self._parents.get(segment_id, ()))
        while unchecked:
            ancestor = unchecked.pop()
            checked.add(ancestor)
            unchecked |= self._parents.get(ancestor, frozenset()) - checked
        return sorted(checked & self._positions.keys())

    # Reading.

    def _open(self, segment_reader: ReaderSlot[PositionReader]) -> PositionReader:
        """Open the reader of a segment. Runs in a background thread. The position does not change before the
        reader is open. Raises the errors of `open_at`.
        """
        return open_at(self._logs, segment_reader, self._positions[segment_reader.segment_id])

    def _poll(self) -> CheckpointBatch | None:
        """Run one poll: follow the layout, open the readers that are due, and return the batch of the next
        segment, in rotation, that has messages; None if there are none, and while paused. A list of segments with an
        earlier epoch than the known layout is ignored.

        If a segment ends, its children are polled at once. Raises DataGone, and the error of the last request
        for the list unless the error is Retryable.
        """
        if self._is_paused:
            return None
        self._readers.signal_all_if_due()
        if self._watch.take() and self._watch.current.epoch >= self._layout.epoch:
            self._adopt(self._watch.current)
        while True:
            self._readers.open_due()
            self._raise_if_deleted()
            done = len(self._done)
            for segment_reader, reader in self._readers.with_new_messages():
                batch = self._read(segment_reader, reader)
                if batch is not None:
                    return batch
            if len(self._done) == done:
                return None  # otherwise children may begin

    def _raise_if_deleted(self) -> None:
        """Raise DataGone if a reader has recorded that the next messages of a segment were deleted, or that
        the log of a segment is missing that has left the layout.

        If a log is missing and its segment is still in the known layout, request the layout again.
        """
        for segment_reader in self._readers.all:
            if isinstance(segment_reader.error, SegmentNotFound):
                if self._has_left(segment_reader.segment_id):
                    raise DataGone(
                        f"segment {segment_reader.segment_id} ({segment_reader.backing_topic}) was deleted before it was read to its end; start again without the checkpoint"
                    ) from segment_reader.error
                self._watch.look_again()
            elif isinstance(segment_reader.error, DataGone):
                raise segment_reader.error

    def _read(
        self, segment_reader: ReaderSlot[PositionReader], reader: PositionReader
    ) -> CheckpointBatch | None:
        """Return the next batch of the segment, and advance the segment's position behind the batch. Return None if
        there are no messages at present, while a query of the log is in progress, and if the log is out of reach; the
        log is then reopened.

        If the segment is read to its end, mark the segment as done (`_note_done`), with or without a last batch. The
        end counts only if the segment is sealed in the known layout, or is no longer in the known layout. Raises
        DataGone, and the other errors of `read_on`.
        """
        # Only a segment that the layout shows as sealed is done: that layout also contains its children.
        is_sealed = self._segments[segment_reader.segment_id].is_sealed or self._has_left(
            segment_reader.segment_id
        )
        page = read_on(self._readers, segment_reader, reader, self._batch_messages, is_sealed=is_sealed)
        if page is None:
            return None
        before = self._positions[segment_reader.segment_id]
        if page.messages:
            self._positions[segment_reader.segment_id] = page.messages[-1].position
        if page.is_end:
            self._note_done(segment_reader.segment_id)
        return CheckpointBatch(segment_reader.segment_id, page.messages, before) if page.messages else None

    def _note_done(self, segment_id: int) -> None:
        """Mark the segment as read to its end: move the segment from `_positions` to `_done`, stop its reader, and
        begin to read the segments that waited for this segment only. The segment must have been in `_positions`.
        """
        self._done.add(segment_id)
        del self._positions[segment_id]
        self._follow()

    def _has_left(self, segment_id: int) -> bool:
        """Return True if the known layout no longer has the segment, so that the segment was pruned."""
        return segment_id not in self._layout.segments

    def _reason(self, segment_id: int) -> str:
        """Return the reason why no message of a segment is delivered: unread ancestors, or the reason of its
        reader.
        """
        waits_for = self._waits_for(segment_id)
        if waits_for:
            return f"after segment(s) {', '.join(map(str, waits_for))}"
        return self._readers.reason(segment_id, is_paused=self._is_paused)


def restored(checkpoint: Checkpoint, layout: SegmentList) -> tuple[dict[int, Position | None], set[int]]:
    """Return where a consumer that starts with `checkpoint` reads: by segment id, the position in each segment of the
    present `layout` that is not done, and the ids of the segments of the layout that are done. The position of a
    segment that was created after the checkpoint is None, the beginning.

    Raises Conflict for a checkpoint of another topic, or of an epoch later than that of the layout; DataGone if the
    checkpoint has a position in a segment that is no longer in the layout; and InvalidInput if the checkpoint lacks a
    segment of the layout that existed at the checkpoint's epoch.
    """
    if checkpoint.topic_id != layout.topic_id:
        raise Conflict(
            f"the checkpoint is of {checkpoint.topic} (topic {checkpoint.topic_id}), and {layout.topic} is topic {layout.topic_id}; start again without the checkpoint"
        )
    if checkpoint.epoch > layout.epoch:
        raise Conflict(
            f"the checkpoint is of epoch {checkpoint.epoch}, and {layout.topic} is at epoch {layout.epoch}, so its layout was restored from a backup; "
            "start again without the checkpoint"
        )
    missing = sorted(checkpoint.positions.keys() - layout.segments.keys())
    if missing:
        raise DataGone(
            f"segment(s) {', '.join(map(str, missing))} of {layout.topic} were deleted before they were read to their end; "
            "start again at the earliest stored message, and create a checkpoint subscription that keeps the messages you need"
        )
    unnamed_ids = [
        i
        for i, segment in layout.segments.items()
        if segment.created_epoch <= checkpoint.epoch
        and i not in checkpoint.positions
        and i not in checkpoint.done
    ]
    if unnamed_ids:
        raise InvalidInput(
            f"the checkpoint does not name segment {min(unnamed_ids)}, which existed at its epoch; give an earlier checkpoint"
        )
    positions = {i: checkpoint.positions.get(i) for i in layout.segments if i not in checkpoint.done}
    return positions, set(checkpoint.done & layout.segments.keys())


def instant_of(start: datetime) -> int:
    """Return the instant in milliseconds since the Unix epoch. Raises InvalidInput without a time zone."""
    if start.tzinfo is None:
        raise InvalidInput(f"instant {start.isoformat()} has no time zone; give one")
    return to_ms(start)


def _follows(segment: ListedSegment, departed: ListedSegment) -> bool:
    """Return True if `segment` descends from `departed`, a segment that left the layout, perhaps before its
    children were known.

    Every later segment that shares keys with the departed segment is its descendant.
    """
    return segment.segment_id > departed.segment_id and segment.hash_range.overlaps(departed.hash_range)
