"""Shares the messages of a topic with any number of other consumers, in no order, each message settled by itself.

A consumer reads every segment that its subscription has still something in, sealed or not, parents and children side by side. No
leader gives anything out: the data plane gives each message to one consumer. What is neither acknowledged nor given back when a
consumer closes, or is not heard of any more, is given to another. Who finds a sealed segment settled to its end says so, and then
nobody reads it any more and it may be collected.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from controller import client_metrics
from controller.client.arguments import checks_arguments
from controller.client.aside import AsideCalls
from controller.client.closing import ClosedByWith, CloseTime, close_and_say_goodbye
from controller.client.lag import BucketLag, lag_of, lag_path
from controller.client.patience import patiently
from controller.client.rounds import LOOK_SECONDS, WAITS_FOR_RECEIVE, Rounds
from controller.client.segment_lists import SegmentWatch
from controller.client.segment_readers import SegmentReader, SegmentReaders
from controller.client.servers import Servers
from controller.client.suspects import SuspectReports
from controller.dataplane.base import LogClient, LogMessage, Position, QueueReader
from controller.domain.errors import (
    CleaveError,
    DataPlaneUnavailable,
    FencedOut,
    InvalidInput,
    LogShortened,
    LostRace,
    NotFound,
)
from controller.domain.names import demand_name
from controller.forks import OneProcess

SAY_AGAIN_SECONDS = 5.0
"""A segment that is drained and still in the list is said to be drained again after this time."""
_RECEIVED = client_metrics.CONSUMER_MESSAGES.labels("queue")
"""Looked up once: the lookup takes longer than the count, which each message is."""


class _Share:
    """One attachment to one log: what it was given and has not handed out, what is in hand. Safe to share between threads."""

    def __init__(self, reader: QueueReader, most_waiting: int) -> None:
        self._reader, self._most_waiting = reader, most_waiting
        self._lock = threading.RLock()
        self._waiting: deque[LogMessage] = deque()
        self._in_hand: set[Position] = set()
        self.is_lost = False
        self.said_drained_at = float("-inf")
        self.asked_as_of: str | None = None
        """Of which list it was asked whether it is drained."""

    @property
    def in_hand(self) -> int:
        """Messages handed out and not settled."""
        return len(self._in_hand)

    def holds(self, position: Position) -> bool:
        """Whether it is in hand, and nobody else's by now."""
        return not self.is_lost and position in self._in_hand and self._reader.is_current

    def may_wait(self) -> bool:
        """Whether nothing is to be had here without asking what may take long."""
        return not self._waiting and self._reader.may_wait()

    def ask(self, *, may_be_drained: bool) -> bool:
        """Have something wait here, if there is anything. Whether there is not, and can never be. Raises as `QueueReader.read`."""
        with self._lock:
            if self.may_wait():
                self._waiting.extend(self._reader.read(self._most_waiting))
            return may_be_drained and not self._waiting and not self._in_hand and self._reader.is_drained()

    def next(self) -> LogMessage | None:
        """The next message to hand out; None when there is none now. Raises as `QueueReader.read`."""
        with self._lock:
            if self._waiting and not self._reader.is_current:
                raise LostRace("what waits here may be another's by now", 0.0)
            if not self._waiting:
                self._waiting.extend(self._reader.read(self._most_waiting))
            if not self._waiting:
                return None
            message = self._waiting.popleft()
            self._in_hand.add(message.position)
            _RECEIVED.inc()
            return message

    def acknowledge(self, positions: Sequence[Position], patience_seconds: float) -> bool:
        """Whether all of them are settled now."""
        with self._lock:
            try:
                refused = patiently(lambda: self._reader.acknowledge(positions), seconds=patience_seconds)
            except (LostRace, NotFound, FencedOut):
                self.is_lost = True
                return False
            self._in_hand.difference_update(positions)
            client_metrics.CONSUMER_ACKNOWLEDGED.labels("queue").inc(len(positions) - len(refused))
            return not refused

    def give_back(self, position: Position, delay_seconds: float, patience_seconds: float) -> None:
        """Have this one given out again."""
        with self._lock:
            try:
                patiently(
                    lambda: self._reader.give_back([position], delay_seconds=delay_seconds),
                    seconds=patience_seconds,
                )
            except (LostRace, NotFound, FencedOut):
                self.is_lost = True
            self._in_hand.discard(position)

    def close(self) -> None:
        """Leave. What waits here goes to others without having counted as delivered."""
        with self._lock:
            unseen, self._waiting = [one.position for one in self._waiting], deque()
            self.is_lost = True
            if unseen:
                with suppress(CleaveError):
                    self._reader.give_back(unseen, unseen=True)
            self._reader.close()


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message in hand. Acknowledge it, or give it back."""

    segment_id: int
    message: LogMessage
    origin: object
    """The attachment it came from. An acknowledgement after that has ended is refused."""

    @property
    def key(self) -> bytes | None:
        """As it was sent."""
        return self.message.key

    @property
    def payload(self) -> bytes:
        """As it was sent."""
        return self.message.payload

    @property
    def deliveries(self) -> int:
        """How often it was given out, this time included; see `LogMessage`."""
        return self.message.deliveries


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Why nothing comes of a segment just now."""

    segment_id: int
    """Segment of the topic."""
    reason: str
    """Why no message comes, in words."""
    in_hand: int
    """Number of messages of the segment that are received and neither acknowledged nor given back."""


@checks_arguments
class QueueConsumer(OneProcess, ClosedByWith):
    """`receive` and `receive_many` are for one thread; messages may be acknowledged and given back in any."""

    def __init__(
        self,
        servers: Servers,
        logs: LogClient,
        topic: str,
        subscription: str,
        name: str,
        *,
        queue_messages: int = 100,
        patience_seconds: float = 30.0,
    ) -> None:
        """`name` is for people who look at the data plane; several consumers may have the same.

        `queue_messages` is the most that waits here to be handed out, of each segment; a small number shares out long work more
        evenly. `patience_seconds` bounds how long a call goes on while the data plane is away. Raises NotFound, TopicNotLive,
        StoreUnavailable; Conflict where the subscription is not a queue.
        """
        self._logs, self._subscription, self.name = logs, subscription, demand_name("consumer", name)
        self._servers, self._lag_path = servers, lag_path(topic, subscription)
        self._queue_messages, self._patience_seconds = queue_messages, patience_seconds
        self._wakeup = threading.Event()
        self._is_paused = self._is_following = False
        # What is not there may be being made, or deleted.
        self._rounds = Rounds(self._wakeup, patience_seconds, DataPlaneUnavailable, NotFound)
        self._watch = patiently(
            lambda: SegmentWatch(servers, topic, queue=subscription, on_change=self._wakeup.set),
            seconds=patience_seconds,
        )
        self._readers = SegmentReaders(self._open, self._wakeup, SuspectReports(servers, topic))
        self._calls = AsideCalls(1, "cleave-queue-calls")

    @property
    def segment_ids(self) -> tuple[int, ...]:
        """Segments of which this consumer is given messages now."""
        return tuple(one.segment_id for one in self._readers.all if one.reader is not None)

    @property
    def in_hand(self) -> int:
        """Messages handed out and neither acknowledged nor given back."""
        return sum(share.in_hand for share in self._shares())

    def receive(self, timeout_seconds: float) -> QueuedMessage | None:
        """The next message, waiting for one at most so long; None when there is none. Segments take turns.

        Raises TopicNotFound, SubscriptionNotFound when that is gone; DataPlaneUnavailable when nothing is to be had, and a
        segment has been out of reach for longer than the patience; InvalidInput once it is closed.
        """
        return self._rounds.receive(
            timeout_seconds,
            self._look_or_demand,
            lambda: math.inf if self._is_paused else self._readers.due_at,
            self._follow,
        )

    def receive_many(self, most: int, timeout_seconds: float) -> Sequence[QueuedMessage]:
        """Up to `most` messages: it waits for the first one, as `receive` does, and takes with it what is there."""
        found: list[QueuedMessage] = []
        while len(found) < most:
            message = self.receive(0.0 if found else timeout_seconds)
            if message is None:
                break
            found.append(message)
        return found

    def acknowledge(self, *messages: QueuedMessage) -> bool:
        """Done with these. False when one of them may come again, here or elsewhere: this consumer was not heard for too long, or
        the subscription was moved. Raises DataPlaneUnavailable when that is not known after the patience; call again.
        """
        by_share: dict[_Share, list[Position]] = {}
        for one in messages:
            by_share.setdefault(_share_of(one), []).append(one.message.position)
        answers = [share.acknowledge(found, self._patience_seconds) for share, found in by_share.items()]
        self._wakeup.set()  # a segment may be drained now
        return all(answers)

    def holds(self, message: QueuedMessage) -> bool:
        """Whether the message is in hand here, and nobody else has it, as far as is known here."""
        return _share_of(message).holds(message.message.position)

    def nack(self, message: QueuedMessage, delay_seconds: float = 1.0) -> None:
        """This one cannot be done now: it is given out again after the delay, here or elsewhere, and counts one delivery more."""
        _share_of(message).give_back(message.message.position, delay_seconds, self._patience_seconds)
        self._wakeup.set()

    def why(self) -> tuple[QueueStatus, ...]:
        """Of each segment that the subscription has something to read in why nothing of it comes here."""
        return tuple(self._status(segment_id) for segment_id in sorted(self._watch.found.segments))

    def lag(self) -> tuple[BucketLag, ...]:
        """Of each segment that the subscription has to read how many messages are not acknowledged, here and elsewhere; the worker
        counts anew. Raises StoreUnavailable.
        """
        return lag_of(self._servers.ask("GET", self._lag_path))

    def pause(self) -> None:
        """Take nothing until `resume`. What waits here goes to others at the next call of `receive`; what is in hand stays."""
        self._is_paused = True
        self._wakeup.set()

    def resume(self) -> None:
        """Take messages again."""
        self._is_paused = False
        self._wakeup.set()

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:  # noqa: ARG002
        """Leave. Other threads have four fifths of `timeout_seconds` to settle what they have in hand, and none where it is not given;
        what is not settled then is given out again. The rest, a second at least, is for giving back what waits here, which is done when
        this is interrupted, too. Nothing is kept for a consumer that comes back: `leave` is there so that consumers of all kinds are
        closed in the same way.
        """
        timing = self._begin_close(timeout_seconds)
        self._is_paused = True
        self._wakeup.set()  # a `receive` that waits ends
        try:
            while timeout_seconds is not None and self.in_hand and (left := timing.left_seconds) > 0:
                self._wakeup.clear()
                if self.in_hand:
                    self._wakeup.wait(min(left, LOOK_SECONDS))
        finally:
            close_and_say_goodbye(
                f"consumer {self.name} of {self._watch.found.topic}",
                CloseTime(timing.left_seconds + timing.goodbye_seconds),
                self._readers.close,
                self._stop_following,
            )

    def _described(self) -> str:
        return f"QueueConsumer of {self._watch.found.topic}"

    def _stop_following(self, seconds: float) -> None:
        self._watch.close()
        self._calls.close(seconds)

    def _shares(self) -> Iterable[_Share]:
        return [one.reader for one in self._readers.all if one.reader is not None]

    def _open(self, one: SegmentReader[_Share]) -> _Share:
        """In a thread aside."""
        reader = self._logs.open_queue_reader(
            one.backing_topic, self._subscription, owner=self.name, on_arrival=one.ring
        )
        return _Share(reader, self._queue_messages)

    def _follow(self) -> None:
        """Read the segments of the newest list; while paused only those of which something is in hand. Raises InvalidInput once closed."""
        self._demand_open()
        is_new = self._watch.take()
        if self._is_paused:
            idle = [
                one.segment_id for one in self._readers.all if one.reader is None or not one.reader.in_hand
            ]
            for segment_id in idle:
                self._readers.drop(segment_id)
            self._is_following = False
        elif is_new or not self._is_following:
            self._is_following = True
            self._readers.follow({i: one.backing_topic for i, one in self._watch.found.segments.items()})

    def _look_or_demand(self) -> QueuedMessage | None:
        """When there is nothing, what is out of reach is told."""
        message = None if self._is_paused else self._look()
        if message is None:
            self._readers.demand_reached()
        return message

    def _look(self) -> QueuedMessage | None:
        """One round: open what is to be read, and take from the next segment that has something."""
        self._readers.ring_all_if_due()
        self._readers.open_due()
        for one, share in self._readers.with_something_new():
            message = self._take(one, share)
            if message is not None:
                return QueuedMessage(one.segment_id, message, share)
        return None

    def _take(self, one: SegmentReader[_Share], share: _Share) -> LogMessage | None:
        """The segment's next message. When there is none, and can never be one, that is said."""
        try:
            if share.is_lost:
                raise LostRace("lost while it was acknowledged", 0.0)
            answer: bool | None = one.take_answer()
            if answer is None:
                one.rung.clear()
            message = None if share.may_wait() else share.next()
            if message is not None:
                one.succeed()
                one.rung.set()  # there may be more
                one.setback = None
                self._readers.settled(one.segment_id)
                return message
            if answer is None:
                self._ask(one, share)
                return None
            one.succeed()
            if answer:
                self._say_drained(one.segment_id, share)
        except (LostRace, NotFound, FencedOut) as error:
            one.setback = error.message if isinstance(error, LogShortened) else one.setback
            self._readers.reopen(one, error if isinstance(error, NotFound) else None)
        except DataPlaneUnavailable as error:
            one.rung.set()
            one.fail(error)
        return None

    def _ask(self, one: SegmentReader[_Share], share: _Share) -> None:
        """Ask aside what may take long: what nothing is known of here, and whether a sealed segment is drained."""
        listed = self._watch.found.segments.get(one.segment_id)
        is_said = time.monotonic() < share.said_drained_at + SAY_AGAIN_SECONDS
        may_be_drained = listed is not None and listed.is_sealed and not is_said
        if may_be_drained or share.may_wait():
            share.asked_as_of = self._watch.found.as_of
            self._readers.ask(one, partial(share.ask, may_be_drained=may_be_drained))
        else:
            one.succeed()

    def _say_drained(self, segment_id: int, share: _Share) -> None:
        """As of the list that was known when the log was asked, which is older than the look at the log."""
        as_of = share.asked_as_of
        share.said_drained_at = time.monotonic()

        def say() -> None:
            with suppress(CleaveError):  # it is said again
                self._watch.say_drained([segment_id], as_of)
            self._watch.look_again()

        self._calls.submit(say)

    def _status(self, segment_id: int) -> QueueStatus:
        one = next((one for one in self._readers.all if one.segment_id == segment_id), None)
        in_hand = one.reader.in_hand if one is not None and one.reader is not None else 0
        if self._is_paused:
            reason = "paused"
        elif one is not None and one.error is not None:
            reason = f"out of reach: {one.error}"
        elif one is not None and one.setback is not None:
            reason = one.setback
        elif one is None or one.reader is None:
            reason = "being opened"
        else:
            reason = WAITS_FOR_RECEIVE if one.rung.is_set() else "no data that others do not have"
        return QueueStatus(segment_id, reason, in_hand)


def _share_of(message: QueuedMessage) -> _Share:
    if not isinstance(message.origin, _Share):
        raise InvalidInput("this message was not received here; acknowledge what `receive` gave")
    return message.origin
