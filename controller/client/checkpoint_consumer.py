"""Reads a topic in the order of each key for an application that keeps its own position: nothing is acknowledged anywhere.

One consumer reads every segment. A segment's children are read when it, and all it descends from, is read to its end; that is
seen to here, since no leader is asked. `checkpoint` names a place in every segment of the newest layout that this consumer
knows, and a consumer that begins with it goes on exactly there. A segment that is out of reach is waited for: nothing stands for
a place that is not known. What was deleted before it was read is told (DataGone).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from controller.client.arguments import checks_arguments
from controller.client.checkpoint import Checkpoint
from controller.client.closing import ClosedByWith, close_and_say_goodbye
from controller.client.patience import patiently
from controller.client.position_reading import open_at, read_on
from controller.client.rounds import Rounds
from controller.client.segment_lists import ListedSegment, SegmentList, SegmentWatch
from controller.client.segment_readers import SegmentReader, SegmentReaders
from controller.client.servers import Servers
from controller.client.suspects import SuspectReports
from controller.clock import to_ms
from controller.dataplane.base import LogClient, LogMessage, Position, PositionReader
from controller.domain.errors import (
    Conflict,
    DataGone,
    DataPlaneUnavailable,
    InvalidInput,
    SegmentNotFound,
    StoreUnavailable,
)
from controller.forks import OneProcess

PARALLEL_LOCATES = 4
"""Segments in which a place is looked up at once; all are needed, so one that hangs is waited for."""
MOST_LOOKS = 5
"""So often a beginning consumer asks for the layout when segments disappear while it looks for its places in them."""


class Start(StrEnum):
    """Position at which a consumer without a checkpoint begins."""

    EARLIEST = "earliest"
    """The first message that the topic still has."""
    LATEST = "latest"
    """The first message that is published from now on."""


@dataclass(frozen=True, slots=True)
class CheckpointBatch:
    """Messages of one segment, in order."""

    segment_id: int
    messages: Sequence[LogMessage]
    origin: object = None
    """In a group, the ownership it came from."""


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """Why nothing comes of a segment just now. `holder` is the member of the group that it waits for."""

    segment_id: int
    """Segment of the topic."""
    reason: str
    """Why no message comes, in words."""
    holder: str | None = None
    """Member of the group that the segment waits for."""
    since: str | None = None
    """When that began, in ISO 8601, where another member has it or nobody."""


@checks_arguments
class CheckpointConsumer(OneProcess, ClosedByWith):
    """For one thread; `pause` and `resume` may come from any."""

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
        """`start` is a checkpoint, or its bytes; or earliest, latest, or an instant with its time zone, as the messages'
        `published_at_ms` counts.

        The places of a start without a checkpoint are looked up here, in every segment, so that a checkpoint taken at once stands
        for them. `patience_seconds` bounds how long this and `receive` wait for a segment out of reach. Raises
        DataPlaneUnavailable, StoreUnavailable after that; NotFound; DataGone, Conflict or InvalidInput for a checkpoint that
        cannot be gone on from.
        """
        self._logs, self._batch_messages, self._patience_seconds = logs, batch_messages, patience_seconds
        self._wakeup = threading.Event()
        self._is_paused = False
        self._rounds = Rounds(
            self._wakeup, patience_seconds, DataPlaneUnavailable, StoreUnavailable, SegmentNotFound
        )
        self._positions: dict[int, Position | None] = {}
        self._done: set[int] = set()
        self._known: dict[int, ListedSegment] = {}
        """The segments of the newest layout, and those that have left it before they were read to their end."""
        self._parents: dict[int, frozenset[int]] = {}
        self._watch = patiently(
            lambda: SegmentWatch(servers, topic, on_change=self._wakeup.set), seconds=patience_seconds
        )
        self._readers = SegmentReaders(self._open, self._wakeup, SuspectReports(servers, topic))
        try:
            self._begin(Checkpoint.from_bytes(start) if isinstance(start, bytes) else start)
        except BaseException:
            self.close()
            raise

    def checkpoint(self) -> Checkpoint:
        """Where this consumer is: behind all that `receive` has given out. Take it when the application has done with that."""
        layout = self._layout
        return Checkpoint(
            layout.topic_id, layout.topic, layout.epoch, dict(self._positions), frozenset(self._done)
        )

    def restore(self, checkpoint: Checkpoint | bytes) -> None:
        """Go on from there, as a new consumer would. Raises as the constructor; this consumer is where it was then."""
        self._begin(Checkpoint.from_bytes(checkpoint) if isinstance(checkpoint, bytes) else checkpoint)

    def receive(self, timeout_seconds: float) -> CheckpointBatch | None:
        """The next messages of one segment, waiting for them at most so long; None when there are none.

        Raises DataGone when what comes next was deleted; TopicNotFound; DataPlaneUnavailable or StoreUnavailable when there is
        nothing to read, and something has been out of reach for longer than the patience; InvalidInput once it is closed.
        """
        return self._rounds.receive(
            timeout_seconds,
            self._look_or_demand,
            lambda: math.inf if self._is_paused else self._readers.due_at,
            self._demand_open,
        )

    def why(self) -> tuple[SegmentStatus, ...]:
        """Of each segment that is not read to its end why nothing of it comes."""
        return tuple(
            SegmentStatus(segment_id, self._reason(segment_id)) for segment_id in sorted(self._positions)
        )

    def pause(self) -> None:
        """Hand out nothing until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        """Hand out again."""
        self._is_paused = False
        self._wakeup.set()

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:  # noqa: ARG002
        """Read no further, within `timeout_seconds` (30). Nothing is acknowledged anywhere, and nobody else waits for this consumer:
        `leave` is there so that consumers of all kinds are closed in the same way.
        """
        timing = self._begin_close(timeout_seconds)
        self._wakeup.set()  # a `receive` that waits ends
        close_and_say_goodbye(
            f"a consumer of {self._watch.found.topic}",
            timing,
            self._readers.close,
            lambda _seconds: self._watch.close(),
        )

    def _described(self) -> str:
        return f"CheckpointConsumer of {self._watch.found.topic}"

    # Where to begin.

    def _begin(self, start: Checkpoint | Start | datetime) -> None:
        """Take up this place, all of it or, when an error is raised, nothing."""
        if isinstance(start, datetime):
            instant_of(start)
        found, positions, done = self._places(start)
        self._readers.follow({})
        self._positions, self._done = positions, done
        self._known, self._parents = {}, {}
        self._adopt(found)

    def _places(
        self, start: Checkpoint | Start | datetime
    ) -> tuple[SegmentList, dict[int, Position | None], set[int]]:
        """The layout as it is now, and the place of `start` in each segment."""
        for look in range(MOST_LOOKS):
            found = patiently(self._watch.ask, seconds=self._patience_seconds)
            try:
                if isinstance(start, Checkpoint):
                    return found, *restored(start, found)
                return found, *self._located(start, found)
            except SegmentNotFound:  # pruned a moment ago
                if look + 1 == MOST_LOOKS:
                    raise
        raise AssertionError("unreachable")

    def _located(
        self, start: Start | datetime, found: SegmentList
    ) -> tuple[dict[int, Position | None], set[int]]:
        """The place of `start` in each segment."""
        done = {i for i, one in found.segments.items() if start is Start.LATEST and one.is_sealed}
        instant_ms = (
            instant_of(start) if isinstance(start, datetime) else 0 if start is Start.EARLIEST else None
        )
        looked_at = [one for i, one in sorted(found.segments.items()) if i not in done]

        def locate(one: ListedSegment) -> Position:
            return patiently(
                lambda: self._logs.locate(one.backing_topic, instant_ms), seconds=self._patience_seconds
            )

        with ThreadPoolExecutor(PARALLEL_LOCATES, thread_name_prefix="cleave-locate") as threads:
            positions = list(threads.map(locate, looked_at))
        return {one.segment_id: at for one, at in zip(looked_at, positions, strict=True)}, done

    # Following the layout.

    def _adopt(self, found: SegmentList) -> None:
        """Follow this layout: what is new is read from its very beginning, what is gone and done is forgotten."""
        for segment_id in found.segments.keys() - self._positions.keys() - self._done:
            self._positions[segment_id] = None
        self._done &= found.segments.keys()
        departed = {
            i: one for i, one in self._known.items() if i in self._positions.keys() - found.segments.keys()
        }
        self._known = {**departed, **found.segments}
        links = {i: self._parents.get(i, frozenset()) for i in self._known}
        for segment_id, one in found.segments.items():
            links[segment_id] |= {
                *one.parent_ids,
                *(i for i, gone in departed.items() if _follows(one, gone)),
            }
        self._parents = links
        self._layout = found
        self._follow()

    def _follow(self) -> None:
        """Read those segments whose ancestors are all read to their ends. Parents have lower ids than their children."""
        waits: dict[int, bool] = {}
        for segment_id in sorted(self._known):
            parents = self._parents[segment_id]
            waits[segment_id] = any(one in self._positions or waits.get(one, False) for one in parents)
        self._readers.follow({i: self._known[i].backing_topic for i in self._positions if not waits[i]})

    def _waits_for(self, segment_id: int) -> list[int]:
        """Ancestors that are not read to their ends. One that nothing is known of was pruned long ago, and counts as done."""
        seen: set[int] = set()
        unseen = set(self._parents.get(segment_id, ()))
        while unseen:
            one = unseen.pop()
            seen.add(one)
            unseen |= self._parents.get(one, frozenset()) - seen
        return sorted(seen & self._positions.keys())

    # Reading.

    def _open(self, one: SegmentReader[PositionReader]) -> PositionReader:
        """In a thread aside. The position is this reading's: it does not change before there is a reader."""
        return open_at(self._logs, one, self._positions[one.segment_id])

    def _look_or_demand(self) -> CheckpointBatch | None:
        """When there is nothing, what is out of reach is told."""
        batch = None if self._is_paused else self._look()
        if batch is None:
            self._readers.demand_reached()
        return batch

    def _look(self) -> CheckpointBatch | None:
        """One round: follow the layout, open what is to be read, and read from the next segment that has something."""
        self._readers.ring_all_if_due()
        if self._watch.take() and self._watch.found.epoch >= self._layout.epoch:
            self._adopt(self._watch.found)
        while True:
            self._readers.open_due()
            self._demand_there()
            done = len(self._done)
            for one, reader in self._readers.with_something_new():
                batch = self._read(one, reader)
                if batch is not None:
                    return batch
            if len(self._done) == done:
                return None  # or else children may begin

    def _demand_there(self) -> None:
        """Raise for what was deleted. A log that is not there may be one that was pruned, of which the layout tells."""
        for one in self._readers.all:
            if isinstance(one.error, SegmentNotFound):
                if self._has_left(one.segment_id):
                    raise DataGone(
                        f"segment {one.segment_id} ({one.backing_topic}) was deleted before it was read to its end; begin anew"
                    ) from one.error
                self._watch.look_again()
            elif isinstance(one.error, DataGone):
                raise one.error

    def _read(self, one: SegmentReader[PositionReader], reader: PositionReader) -> CheckpointBatch | None:
        """The segment's next batch. It is noted when there can never be another one."""
        # Only what the layout says is sealed is done: its children are in that layout, too.
        is_sealed = self._known[one.segment_id].is_sealed or self._has_left(one.segment_id)
        found = read_on(self._readers, one, reader, self._batch_messages, is_sealed=is_sealed)
        if found is None:
            return None
        if found.messages:
            self._positions[one.segment_id] = found.messages[-1].position
        if found.is_end:
            self._note_done(one.segment_id)
        return CheckpointBatch(one.segment_id, found.messages) if found.messages else None

    def _note_done(self, segment_id: int) -> None:
        self._done.add(segment_id)
        del self._positions[segment_id]
        self._follow()

    def _has_left(self, segment_id: int) -> bool:
        """Whether it was pruned, as far as is known."""
        return segment_id not in self._layout.segments

    def _reason(self, segment_id: int) -> str:
        waits_for = self._waits_for(segment_id)
        if waits_for:
            return f"after segment(s) {', '.join(map(str, waits_for))}"
        return self._readers.reason(segment_id, is_paused=self._is_paused)


def instant_of(start: datetime) -> int:
    """Milliseconds since the Unix epoch. Raises InvalidInput without a time zone."""
    if start.tzinfo is None:
        raise InvalidInput(f"instant {start.isoformat()} has no time zone; give one")
    return to_ms(start)


def _follows(one: ListedSegment, gone: ListedSegment) -> bool:
    """Whether a segment descends from one that left the layout, perhaps before its successors were known: whatever came later and
    shares keys with it does.
    """
    return one.segment_id > gone.segment_id and one.hash_range.overlaps(gone.hash_range)


def restored(kept: Checkpoint, found: SegmentList) -> tuple[dict[int, Position | None], set[int]]:
    """Places in the segments that there are now. What is new since is read from its very beginning.

    Raises Conflict for a checkpoint of another topic, or of an epoch that is still to come; DataGone where a segment is gone that
    was not read to its end.
    """
    if kept.topic_id != found.topic_id:
        raise Conflict(
            f"the checkpoint is of {kept.topic} (topic {kept.topic_id}), and {found.topic} is topic {found.topic_id}: begin anew"
        )
    if kept.epoch > found.epoch:
        raise Conflict(
            f"the checkpoint is of epoch {kept.epoch}, and {found.topic} is at epoch {found.epoch}: its layout was put back; "
            "begin anew"
        )
    gone = sorted(kept.positions.keys() - found.segments.keys())
    if gone:
        raise DataGone(
            f"segment(s) {', '.join(map(str, gone))} of {found.topic} were deleted before they were read to their end; begin "
            "anew where messages are left, and have a checkpoint subscription keep what you need"
        )
    unnamed = [
        i
        for i, one in found.segments.items()
        if one.created_epoch <= kept.epoch and i not in kept.positions and i not in kept.done
    ]
    if unnamed:
        raise InvalidInput(
            f"the checkpoint does not name segment {min(unnamed)}, which its epoch had; give an earlier one"
        )
    positions = {i: kept.positions.get(i) for i in found.segments if i not in kept.done}
    return positions, set(kept.done & found.segments.keys())
