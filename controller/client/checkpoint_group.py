"""Shares a topic among consumers that keep their own place: each key in order, nothing acknowledged anywhere.

The group is a subscription of kind checkpoint. The topic's leader gives each segment, whole, to one member, and children when all
that they descend from is read to its end (`session`). Positions are the application's: each member keeps one value, its checkpoint.
Whoever gets a segment goes on where the kept values of all members say that it was left. What a value says of a segment counts by
the generation at which its member had got it, so of two that name it the later owner's is right.

Nothing that is not kept is given away: a member lets go of a segment, and says that it is read to its end, when a checkpoint
that says so was kept (`kept`). A member that dies is followed by one that begins at what it had kept last.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from controller.client.arguments import checks_arguments
from controller.client.checkpoint import Checkpoint, merged
from controller.client.checkpoint_consumer import (
    CheckpointBatch,
    CheckpointConsumer,
    SegmentStatus,
    instant_of,
)
from controller.client.closing import ClosedByWith, close_and_say_goodbye
from controller.client.position_reading import open_at, read_on
from controller.client.rounds import Rounds
from controller.client.segment_readers import SegmentReader, SegmentReaders
from controller.client.servers import Servers
from controller.client.session import Assignment, OwnedBucket, Session
from controller.client.suspects import SuspectReports
from controller.dataplane.base import LogClient, Position, PositionReader
from controller.domain.errors import (
    Conflict,
    DataGone,
    DataPlaneUnavailable,
    SegmentNotFound,
    StoreUnavailable,
)
from controller.domain.hash_range import FULL_RANGE
from controller.forks import OneProcess

KeptValues = Callable[[], Iterable[Checkpoint | bytes]]
"""The newest checkpoint that was kept of each member, of those that are gone as well."""


@dataclass(slots=True)
class _Segment:
    """One ownership of a segment. `position` and `is_done` say how far it was handed out, `is_kept` whether a checkpoint that the
    application has kept says the same.
    """

    buckets: tuple[OwnedBucket, ...]
    position: Position | None = None
    is_done: bool = False
    is_placed: bool = False
    """Whether its place is known. Of one that is not, no checkpoint says anything new."""
    is_kept: bool = False
    is_told: bool = False
    """Whether the application was told that others wait for it."""

    @property
    def generation(self) -> int:
        """When it became this member's."""
        return max(one.generation for one in self.buckets)

    @property
    def identity(self) -> frozenset[tuple[int, int, int]]:
        """This ownership and no other."""
        return frozenset(one.identity for one in self.buckets)

    @property
    def is_asked(self) -> bool:
        """Whether it is to be let go of."""
        return any(one.release for one in self.buckets)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is lost when another goes on: all that was handed out is in a kept value, or nothing ever was."""
        return self.is_kept or not self.is_placed


@checks_arguments
class CheckpointGroupConsumer(OneProcess, ClosedByWith):
    """One member of the group; for one thread, which must go on calling `receive` to take part."""

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
        """Registers under `name`, which is this member's alone: a second one of that name takes its place.

        `kept_values` is called in the thread that calls `receive`, whenever segments come to this member; what it raises comes out of
        `receive`, and it is called again. `start`, the same for all members and with its time zone, is where segments begin that no
        kept value names: by `published_at_ms`, or None for all that is there. `on_wanted` is called in that thread, too, when others
        wait for a segment of which not everything is kept. `patience_seconds` bounds how long `receive` waits for what is out of
        reach, and this call for a worker that leads the topic.
        Raises NotFound, TopicNotLive, StoreUnavailable; Conflict where the subscription is not of kind checkpoint.
        """
        self._start_ms = None if start is None else instant_of(start)
        self._logs, self._kept_values, self._on_wanted = logs, kept_values, on_wanted
        self.topic, self.group, self.name = topic, group, name
        self._batch_messages = batch_messages
        self._wakeup, self._has_changed = threading.Event(), threading.Event()
        self._is_paused = False
        self._rounds = Rounds(
            self._wakeup, patience_seconds, DataPlaneUnavailable, StoreUnavailable, SegmentNotFound
        )
        self._held: dict[int, _Segment] = {}
        self._known: Checkpoint | None = None
        """What was kept of the group, as far as this member has heard."""
        self._released: set[tuple[int, int, int]] = set()
        """What was let go of is not taken up again: the word of it may be under way."""
        self._readers = SegmentReaders(self._open, self._wakeup, SuspectReports(servers, topic))
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
        """Segments of which something may be handed out here."""
        return tuple(sorted(i for i, one in self._held.items() if not one.is_asked and not one.is_done))

    def checkpoint(self) -> Checkpoint:
        """Where this member is: behind all that `receive` has given out; and where the others were when it last heard of them, so
        that one value replaces the last and nothing is forgotten meanwhile. Take it when the application has done with that.
        """
        assignment = self._session.assignment
        known = self._known
        positions = dict(known.positions) if known else {}
        generations = dict(known.generations) if known else {}
        done = set(known.done) if known else set()
        for segment_id, one in self._held.items():
            if one.is_placed:
                positions.pop(segment_id, None)
                generations.pop(segment_id, None)
                if one.is_done:
                    done.add(segment_id)
                else:
                    positions[segment_id], generations[segment_id] = one.position, one.generation
        epoch = max(known.epoch if known else 0, assignment.epoch if assignment else 0)
        return Checkpoint(self._session.topic_id, self.topic, epoch, positions, frozenset(done), generations)

    def kept(self, checkpoint: Checkpoint) -> None:
        """The application has kept this checkpoint of this member, and `kept_values` gives it: what it covers may go to others."""
        for segment_id, one in self._held.items():
            if one.is_placed and _covers(checkpoint, segment_id, one):
                one.is_kept = True
        self._note(checkpoint)
        self._let_go()

    def receive(self, timeout_seconds: float) -> CheckpointBatch | None:
        """The next messages of one segment, waiting for them at most so long; None when there are none.

        Raises FencedOut when another member took this one's name; TopicNotFound, SubscriptionNotFound when that is gone; DataGone
        when what comes next was deleted; what `kept_values` and `on_wanted` raise; DataPlaneUnavailable or StoreUnavailable when there
        is nothing to read, and something has been out of reach for longer than the patience; InvalidInput once it is closed.
        """
        return self._rounds.receive(timeout_seconds, self._look_or_demand, self._due_at, self._demand_alive)

    def holds(self, batch: CheckpointBatch) -> bool:
        """Whether the segment is this member's still, as far as the leader was heard. If not, another one is given these messages."""
        held = self._held.get(batch.segment_id)
        return held is not None and held is batch.origin and self._is_ours(held)

    def has(self, batch: CheckpointBatch) -> bool:
        """Return True if the ownership that the batch came from goes on, as far as this member has followed its leader."""
        return self._held.get(batch.segment_id) is batch.origin

    def why(self) -> tuple[SegmentStatus, ...]:
        """Of each segment that the group has to read why nothing of it comes here. Raises StoreUnavailable while no worker answers."""
        found: dict[int, SegmentStatus] = {}
        for row in self._session.why():
            segment_id, owner = row["segment_id"], row["owner"]
            if segment_id in self._held:
                found[segment_id] = SegmentStatus(segment_id, self._reason(segment_id))
            else:
                reason = f"owned by {owner}" if row["reason"] == "owned" else row["reason"]
                found[segment_id] = SegmentStatus(segment_id, reason, owner, row["since"])
        return tuple(found[segment_id] for segment_id in sorted(found))

    def pause(self) -> None:
        """Hand out nothing until `resume`, and stay. Go on calling `receive`. May be called from any thread."""
        self._is_paused = True

    def resume(self) -> None:
        """Hand out again. May be called from any thread."""
        self._is_paused = False
        self._wakeup.set()

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Read no further. Others go on where the kept values say; what was not kept comes to them again.

        With `leave` they do so at once; without, a process that starts again under this name within the grace period finds its
        segments as they were, and nobody else is disturbed. The time is shared out as by `StreamConsumer.close`.
        """
        timing = self._begin_close(timeout_seconds)
        self._wakeup.set()  # a `receive` that waits ends
        close_and_say_goodbye(
            f"member {self.name} of {self.topic}",
            timing,
            self._readers.close,
            lambda seconds: self._session.close(seconds, leave=leave),
        )

    def _described(self) -> str:
        return f"CheckpointGroupConsumer of {self.topic}"

    def _kind(self) -> str:
        return CheckpointConsumer.__name__

    def _demand_alive(self) -> None:
        self._demand_open()
        self._session.demand_alive()

    # Following the leader.

    def _changed(self) -> None:
        self._has_changed.set()
        self._wakeup.set()

    def _follow(self) -> None:
        """Take and let go of segments as the leader says."""
        assignment = self._session.assignment
        owned = _whole_segments(assignment)
        for segment_id, one in list(self._held.items()):
            buckets = owned.get(segment_id, ())
            if one.identity != frozenset(bucket.identity for bucket in buckets):
                self._forget(segment_id)  # somebody else's, or another ownership
            else:
                one.buckets = buckets
        parts = assignment.buckets if assignment else ()
        self._released &= {bucket.identity for bucket in parts}
        new = {i: _Segment(buckets) for i, buckets in owned.items() if i not in self._held}
        wanted = {i: one for i, one in new.items() if not one.is_asked and not one.identity & self._released}
        if wanted:
            self._place(wanted)
        self._held |= wanted
        held = {bucket.identity for one in self._held.values() for bucket in one.buckets}
        gone = [
            one
            for one in parts
            if one.identity not in held and (one.release or one.identity in self._released)
        ]
        if gone:  # nothing of these is in hand
            self._session.say_released(gone)
        self._read_on()
        self._let_go()

    def _place(self, segments: dict[int, _Segment]) -> None:
        """Where each was left. What the application cannot tell just now is an error, not a beginning.

        Raises Conflict where the kept values are older than what was read to its end: whoever goes back has to say so to Cleave.
        """
        to_read = {
            row["segment_id"] for row in self._session.why()
        }  # before the values, which say all of it then
        values = [
            Checkpoint.from_bytes(one) if isinstance(one, bytes) else one for one in self._kept_values()
        ]
        for value in values:
            self._note(value)
        known = self._known
        unread = sorted(known.positions.keys() - to_read) if known is not None else []
        if unread:
            raise Conflict(
                f"segment(s) {', '.join(map(str, unread))} of {self.topic} are read to their ends by {self.group}, and the kept "
                f"checkpoints say otherwise; to go back run `cleave subscriptions seek {self.topic} {self.group} kept`"
            )
        for segment_id, one in segments.items():
            if known is not None and segment_id in known.done:
                one.is_done = one.is_placed = one.is_kept = True
            elif known is not None and segment_id in known.positions:
                one.position = known.positions[segment_id]
                one.is_placed = one.is_kept = True
            elif self._start_ms is None:
                one.is_placed = True

    def _note(self, kept: Checkpoint) -> None:
        """Remember what a kept value says."""
        if kept.topic_id != self._session.topic_id:
            raise Conflict(
                f"a kept checkpoint is of {kept.topic} (topic {kept.topic_id}), and {self.topic} is topic "
                f"{self._session.topic_id}; give this group's own"
            )
        self._known = kept if self._known is None else merged([self._known, kept])

    def _read_on(self) -> None:
        """Read what is held and not at its end."""
        self._readers.follow(
            {
                i: one.buckets[0].backing_topic
                for i, one in self._held.items()
                if not one.is_done and not one.is_asked
            }
        )

    def _forget(self, segment_id: int) -> None:
        self._readers.drop(segment_id)
        del self._held[segment_id]

    def _let_go(self) -> None:
        """What is kept: release what others wait for, and say what is read to its end. Both are said until the leader has heard it."""
        released: list[OwnedBucket] = []
        for segment_id, one in list(self._held.items()):
            if one.is_asked and one.is_settled:
                self._forget(segment_id)
                released.extend(one.buckets)
                self._released |= one.identity
        if released:
            self._session.say_released(released)
        drained = [one.buckets[0] for one in self._held.values() if one.is_done and one.is_kept]
        if drained:
            self._session.say_drained(drained)
        unkept = [one for one in self._held.values() if one.is_asked and not one.is_told]
        for one in unkept:
            one.is_told = True
        if unkept:
            self._on_wanted()

    # Reading.

    def _open(self, one: SegmentReader[PositionReader]) -> PositionReader:
        """In a thread aside. Where a segment begins that nobody has read is looked up first."""
        held = self._held.get(one.segment_id)
        if held is None:
            raise DataPlaneUnavailable("it is not this member's any more", 0.0)
        if not held.is_placed:
            held.position = self._logs.locate(one.backing_topic, self._start_ms)
            held.is_placed = True
        return open_at(self._logs, one, held.position)

    def _due_at(self) -> float:
        """While the leader is not heard, or it is paused, nothing is to be opened."""
        return self._readers.due_at if self._session.is_current and not self._is_paused else math.inf

    def _look_or_demand(self) -> CheckpointBatch | None:
        """When there is nothing, what is out of reach is told."""
        batch = self._look()
        if batch is None:
            self._readers.demand_reached()
        return batch

    def _look(self) -> CheckpointBatch | None:
        """One round: follow the leader, open what is to be read, and read from the next segment that has something."""
        if self._readers.ring_all_if_due():
            self._has_changed.set()
        if not self._session.is_current:
            if self._session.is_lost:
                for segment_id in list(self._held):
                    self._forget(segment_id)
            return None
        if self._has_changed.is_set():
            self._has_changed.clear()
            try:
                self._follow()
            except BaseException:
                self._has_changed.set()
                raise
        if self._is_paused:
            return None
        self._readers.open_due()
        self._demand_there()
        for one, reader in self._readers.with_something_new():
            batch = self._read(one, reader)
            if batch is not None:
                return batch
        return None

    def _demand_there(self) -> None:
        """Raise for what was deleted."""
        for one in self._readers.all:
            if isinstance(one.error, DataGone):
                raise one.error

    def _read(self, one: SegmentReader[PositionReader], reader: PositionReader) -> CheckpointBatch | None:
        """The segment's next batch, if it is still this member's."""
        held = self._held[one.segment_id]
        is_sealed = all(bucket.sealed for bucket in held.buckets)
        found = read_on(self._readers, one, reader, self._batch_messages, is_sealed=is_sealed)
        if found is None:
            return None
        if not self._is_ours(held):  # the read took too long: somebody else may own it by now
            self._forget(one.segment_id)
            self._changed()
            return None
        if found.messages:
            held.position, held.is_kept = found.messages[-1].position, False
        if found.is_end:
            # No value can say less of a segment that never had a message for this group, so none has to be kept first.
            held.is_done, held.is_kept = True, held.position is None
            self._readers.drop(one.segment_id)
            if held.is_kept:
                self._changed()
        return CheckpointBatch(one.segment_id, found.messages, held) if found.messages else None

    def _is_ours(self, held: _Segment) -> bool:
        assignment = self._session.assignment
        return self._session.is_current and assignment is not None and held.identity <= assignment.identities

    def _reason(self, segment_id: int) -> str:
        held = self._held[segment_id]
        if not self._session.is_current:
            return "the leader is not heard: it may be another's by now"
        if held.is_asked:
            return "being handed over once what was handed out is kept"
        if held.is_done:
            return "read to its end, once that is kept"
        return self._readers.reason(segment_id, is_paused=self._is_paused)


def _whole_segments(assignment: Assignment | None) -> dict[int, tuple[OwnedBucket, ...]]:
    """The buckets of each segment that is this member's with all of them. One in parts is on its way from somebody else."""
    found: dict[int, list[OwnedBucket]] = {}
    for bucket in assignment.buckets if assignment else ():
        found.setdefault(bucket.segment_id, []).append(bucket)
    return {
        i: tuple(buckets)
        for i, buckets in found.items()
        if sum(one.bucket.width for one in buckets) == FULL_RANGE.width
    }


def _covers(checkpoint: Checkpoint, segment_id: int, held: _Segment) -> bool:
    """Whether it says of the segment all that was handed out in this very ownership."""
    if held.is_done:
        return segment_id in checkpoint.done
    return (
        checkpoint.generations.get(segment_id) == held.generation
        and checkpoint.positions[segment_id] == held.position
    )
