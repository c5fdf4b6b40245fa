"""Receives messages of a queue subscription, whose consumers divide the messages in no order. Each message is
settled by itself.

A consumer reads every segment in which its subscription has messages, sealed or not, parents and children in
parallel. No leader assigns segments: the data plane delivers each message to one consumer. If a consumer
closes or is disconnected, its messages that are neither acknowledged nor returned are delivered to another
consumer. A consumer that finds a sealed segment drained reports it. After that no consumer reads the segment,
and the segment may be pruned.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from controller import client_metrics
from controller.client.arguments import checks_arguments
from controller.client.background_calls import BackgroundCalls
from controller.client.broken_log_reports import SuspectReports
from controller.client.closing import CloseTime, close_and_deregister
from controller.client.lag import BucketLag, lag_of
from controller.client.polling_consumer import PollingConsumer
from controller.client.reader_set import LOOK_SECONDS
from controller.client.reader_slot import ReaderSlot
from controller.client.retry import retry_for
from controller.client.segment_lists import SegmentWatch
from controller.client.segment_readers import NO_DATA, SegmentReaders
from controller.client.servers import Servers
from controller.dataplane.log_client import LogClient, LogMessage, Position, QueueReader
from controller.domain.errors import (
    CleaveError,
    DataPlaneUnavailable,
    FencedOut,
    InvalidInput,
    LogShortened,
    LostRace,
    NotFound,
    Terminal,
)
from controller.domain.names import demand_name

REPEAT_REPORT_SECONDS = 5.0
"""Time after which a drained segment that is still listed is reported as drained again."""
_RECEIVED = client_metrics.CONSUMER_MESSAGES.labels("queue")
"""Looked up once, because the lookup takes longer than the counting, which happens for each message."""


class _SegmentBuffer:
    """The messages of one attachment to one log: buffered messages, and delivered messages that are not
    settled. Safe to share between threads.
    """

    def __init__(self, reader: QueueReader, limit: int) -> None:
        """Create an empty buffer. `limit` is the largest number of messages that are read at a time."""
        self._reader, self._limit = reader, limit
        self._lock = threading.RLock()
        self._waiting: deque[LogMessage] = deque()
        self._in_hand: set[Position] = set()
        self.is_lost = False
        self.reported_drained_at = float("-inf")
        self.queried_as_of: str | None = None
        """`as_of` of the segment list for which the log was queried whether it is drained."""

    @property
    def in_hand(self) -> int:
        """Number of messages that were delivered and not settled."""
        return len(self._in_hand)

    def holds(self, position: Position) -> bool:
        """Return True if the message was delivered here, is not settled and, as far as is known, not
        delivered to another consumer.
        """
        return not self.is_lost and position in self._in_hand and self._reader.is_current

    def may_wait(self) -> bool:
        """Return True if the next read may block on the data plane."""
        return not self._waiting and self._reader.may_wait()

    def ask(self, *, may_be_drained: bool) -> bool:
        """Read messages into the buffer if it is empty and the read may block.

        Return True if the log is drained. Return False, without asking the log, unless `may_be_drained` is
        True and no message is buffered or unsettled. Raises the errors of `QueueReader.read` and
        `is_drained`.
        """
        with self._lock:
            if self.may_wait():
                self._waiting.extend(self._reader.read(self._limit))
            return may_be_drained and not self._waiting and not self._in_hand and self._reader.is_drained()

    def next(self) -> LogMessage | None:
        """Return the next message, which then counts as delivered (`in_hand`), or None if there is none at present.
        If no message is buffered, the call reads from the log, at most `limit` messages, and may block (`may_wait`).

        Raises the errors of `QueueReader.read`, and LostRace if buffered messages may belong to another consumer; the
        attachment must then be closed.
        """
        with self._lock:
            if self._waiting and not self._reader.is_current:
                raise LostRace(
                    "buffered messages may have been delivered to another consumer; receive again", 0.0
                )
            if not self._waiting:
                self._waiting.extend(self._reader.read(self._limit))
            if not self._waiting:
                return None
            message = self._waiting.popleft()
            self._in_hand.add(message.position)
            _RECEIVED.inc()
            return message

    def take_back(self, message: LogMessage) -> None:
        """Buffer a delivered message again, as the next one. Does nothing if the message is settled."""
        with self._lock:
            if message.position in self._in_hand:
                self._in_hand.remove(message.position)
                self._waiting.appendleft(message)

    def acknowledge(self, positions: Sequence[Position], patience_seconds: float) -> bool:
        """Acknowledge the messages. After a response of the log all of them count as settled, also those that
        the log refuses.

        Return True if all of them are acknowledged; False if some are delivered again, or the attachment is
        lost (LostRace, NotFound, FencedOut), which sets `is_lost`. Retries for `patience_seconds`, then
        raises DataPlaneUnavailable; the messages then stay unsettled.
        """
        with self._lock:
            try:
                refused = retry_for(lambda: self._reader.acknowledge(positions), seconds=patience_seconds)
            except (LostRace, NotFound, FencedOut):
                self.is_lost = True
                return False
            self._in_hand.difference_update(positions)
            client_metrics.CONSUMER_ACKNOWLEDGED.labels("queue").inc(len(positions) - len(refused))
            return not refused

    def give_back(self, position: Position, delay_seconds: float, patience_seconds: float) -> None:
        """Return the message to the queue, to be delivered again after the delay, and count it as settled.

        If the attachment is lost, which sets `is_lost`, the message is delivered again anyway. Retries for
        `patience_seconds`, then raises DataPlaneUnavailable; the message then stays unsettled.
        """
        with self._lock:
            try:
                retry_for(
                    lambda: self._reader.give_back([position], delay_seconds=delay_seconds),
                    seconds=patience_seconds,
                )
            except (LostRace, NotFound, FencedOut):
                self.is_lost = True
            self._in_hand.discard(position)

    def close(self) -> None:
        """Close the attachment. Buffered messages go to other consumers, and do not count as delivered;
        unsettled messages are delivered again. Raises nothing for a log out of reach.
        """
        with self._lock:
            unseen, self._waiting = [message.position for message in self._waiting], deque()
            self.is_lost = True
            if unseen:
                with suppress(CleaveError):
                    self._reader.give_back(unseen, unseen=True)
            self._reader.close()


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A received message, to be acknowledged or returned."""

    segment_id: int
    message: LogMessage
    origin: object
    """The attachment that delivered the message. An acknowledgement after its end is refused."""

    @property
    def key(self) -> bytes | None:
        """Key of the message as it was sent; None for a message without a key."""
        return self.message.key

    @property
    def payload(self) -> bytes:
        """Payload of the message as it was sent."""
        return self.message.payload

    @property
    def deliveries(self) -> int:
        """Number of deliveries of the message, including this one (`LogMessage.deliveries`)."""
        return self.message.deliveries


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The reason why no message of a segment is delivered at present."""

    segment_id: int
    """Segment of the topic."""
    reason: str
    """Why no message comes, in words."""
    in_hand: int
    """Number of messages of the segment that are received and neither acknowledged nor returned."""


@checks_arguments
class QueueConsumer(PollingConsumer[QueuedMessage]):
    """A consumer of a queue subscription. `receive` and `receive_many` are for one thread; any thread may
    acknowledge and return messages. The segments are read in rotation. After `pause`, the next call of `receive` passes
    buffered messages to other consumers, except those of segments with unsettled messages; received messages stay.

    `receive` raises TopicNotFound, SubscriptionNotFound if either was deleted, or another refusal of a worker that
    lists the segments; DataPlaneUnavailable, or SegmentNotFound for a missing log, if there is nothing to read and a
    segment was out of reach for longer than `patience_seconds`; Terminal if there is nothing to read and a segment can
    never be read; InvalidInput after `close`.
    """

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
        """Request the segments that the subscription reads, and start to follow them; `receive` opens the logs.
        `name` is for people who inspect the data plane, and several consumers may have the same name.

        `queue_messages` is the largest number of messages of each segment that are buffered here; a small number
        divides long work more evenly among the consumers. `patience_seconds` bounds how long the constructor waits
        for a worker, and how long a later call is retried while the data plane is out of reach.

        Raises NotFound for a missing topic or subscription; TopicNotLive; StoreUnavailable; Conflict if the
        subscription is not a queue; InvalidInput for an invalid name; or another error by which a worker refuses the
        request.
        """
        # NotFound is retried, because the log or the subscription may be being created or deleted.
        super().__init__(patience_seconds, DataPlaneUnavailable, NotFound)
        self._logs, self._subscription, self.name = logs, subscription, demand_name("consumer", name)
        self._servers, self._topic = servers, topic
        self._queue_messages, self._patience_seconds = queue_messages, patience_seconds
        self._is_following = False
        self._watch = retry_for(
            lambda: SegmentWatch(servers, topic, queue=subscription, on_change=self._wakeup.set),
            seconds=patience_seconds,
        )
        self._readers: SegmentReaders[_SegmentBuffer] = SegmentReaders(
            self._open, self._wakeup, SuspectReports(servers, topic)
        )
        self._calls = BackgroundCalls(1, "cleave-queue-calls")

    @property
    def segment_ids(self) -> tuple[int, ...]:
        """Ids of the segments from which this consumer receives messages."""
        return tuple(
            segment_reader.segment_id
            for segment_reader in self._readers.all
            if segment_reader.reader is not None
        )

    @property
    def in_hand(self) -> int:
        """Number of messages that were received and neither acknowledged nor returned, without the messages
        of readers that were lost and opened again.
        """
        return sum(segment_buffer.in_hand for segment_buffer in self._buffers())

    def receive_many(self, most: int, timeout_seconds: float) -> Sequence[QueuedMessage]:
        """Return up to `most` messages: wait for the first message, up to `timeout_seconds`, and add the messages
        that are available at once. The result is empty if no message arrives in that time.

        Raises the errors of `receive` while the call waits for the first message. After an error behind the first
        message, the messages before the error are returned, and a later call raises the error if it persists.
        """
        messages: list[QueuedMessage] = []
        while len(messages) < most:
            try:
                message = self.receive(0.0 if messages else timeout_seconds)
            except CleaveError:
                if not messages:
                    raise
                break
            if message is None:
                break
            messages.append(message)
        return messages

    def acknowledge(self, *messages: QueuedMessage) -> bool:
        """Acknowledge these messages, which may come from several segments. Return True if all of them are
        acknowledged; without messages the result is True. Return False if at least one message may be delivered
        again, here or to another consumer: the reader lost its messages because it was disconnected, or a seek moved
        the subscription. The other messages are acknowledged.

        Raises DataPlaneUnavailable if the result is unknown after `patience_seconds`. Some of the messages may then
        be acknowledged; call the method again with all of them. Raises InvalidInput, and acknowledges nothing, for a
        message of a consumer of another kind.
        """
        by_buffer: dict[_SegmentBuffer, list[Position]] = {}
        for message in messages:
            by_buffer.setdefault(_buffer_of(message), []).append(message.message.position)
        are_settled = [
            segment_buffer.acknowledge(positions, self._patience_seconds)
            for segment_buffer, positions in by_buffer.items()
        ]
        self._wakeup.set()  # a segment may be drained
        return all(are_settled)

    def holds(self, message: QueuedMessage) -> bool:
        """Return True if the message was received here, is not settled and, as far as is known, not delivered
        to another consumer. Raises InvalidInput for a message of a consumer of another kind.
        """
        return _buffer_of(message).holds(message.message.position)

    def take_back(self, message: QueuedMessage) -> None:
        """Buffer a received message again, because the application has not seen it. `receive` returns the message
        again, or `close` passes it to another consumer; its delivery count does not rise. Does nothing if the message
        is settled. Raises InvalidInput for a message of a consumer of another kind.
        """
        _buffer_of(message).take_back(message.message)

    def nack(self, message: QueuedMessage, delay_seconds: float = 1.0) -> None:
        """Return the message to the queue because it cannot be processed. The message is delivered again
        after the delay, here or to another consumer, with a delivery count one higher. If the reader has lost
        the message, the message is delivered again anyway, and nothing is raised. Raises DataPlaneUnavailable
        if the result is unknown after `patience_seconds`; call it again. Raises InvalidInput for a message of
        a consumer of another kind.
        """
        _buffer_of(message).give_back(message.message.position, delay_seconds, self._patience_seconds)
        self._wakeup.set()

    def why(self) -> tuple[QueueStatus, ...]:
        """Return for each segment that the subscription reads why this consumer receives no message of it."""
        return tuple(self._status(segment_id) for segment_id in sorted(self._watch.current.segments))

    def lag(self) -> tuple[BucketLag, ...]:
        """Return the number of unacknowledged messages of each segment that the subscription reads, over all
        consumers. The worker counts at each call. Raises StoreUnavailable, or the worker's refusal.
        """
        return lag_of(self._servers, self._topic, self._subscription)

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:  # noqa: ARG002
        """Leave the queue. Buffered messages are returned for other consumers, and messages that are not settled
        (acknowledged or returned) are delivered again. Afterwards `receive` raises InvalidInput.

        If `timeout_seconds` is given, the call first waits until other threads have settled the received messages, at
        most for four fifths of the time, and at least a second; if it is None, the call does not wait for other
        threads. The rest of the time, at least a second, is for returning buffered messages, which also happens after
        an interruption (KeyboardInterrupt). The default of the whole time is 30 seconds. A limit below 10 seconds may
        be exceeded by a second, and the call may always take 3 seconds. Readers that are not closed by then are
        closed in the background, which is logged.

        `leave` has no effect, because a consumer that comes back keeps nothing; the parameter exists so that
        consumers of all kinds are closed in the same way. Raises InvalidInput, and closes nothing, for a time below 0
        or above a day.
        """
        timing = self._begin_close(timeout_seconds)
        self._is_paused = True
        self._wakeup.set()  # ends a `receive` that waits
        try:
            while (
                timeout_seconds is not None
                and self.in_hand
                and (remaining_seconds := timing.left_seconds) > 0
            ):
                self._wakeup.clear()
                if self.in_hand:
                    self._wakeup.wait(min(remaining_seconds, LOOK_SECONDS))
        finally:
            close_and_deregister(
                f"consumer {self.name} of {self._watch.current.topic}",
                CloseTime(timing.left_seconds + timing.deregistration_seconds),
                self._readers.close,
                self._stop_following,
            )

    def _described(self) -> str:
        return f"QueueConsumer of {self._watch.current.topic}"

    def _stop_following(self, seconds: float) -> None:
        """Stop following the segment list, and wait up to `seconds` for reports that are queued or in
        progress.
        """
        self._watch.close()
        self._calls.close(seconds)

    def _buffers(self) -> Iterable[_SegmentBuffer]:
        return [
            segment_reader.reader for segment_reader in self._readers.all if segment_reader.reader is not None
        ]

    def _open(self, segment_reader: ReaderSlot[_SegmentBuffer]) -> _SegmentBuffer:
        """Open the reader of a segment. Runs in a background thread. Raises the errors of
        `LogClient.open_queue_reader`.
        """
        reader = self._logs.open_queue_reader(
            segment_reader.backing_topic,
            self._subscription,
            owner=self.name,
            on_arrival=segment_reader.notify,
        )
        return _SegmentBuffer(reader, self._queue_messages)

    def _before_poll(self) -> None:
        """Take the newest list of segments, create a reader for each listed segment that has none, and drop the
        readers of other segments. `open_due` opens the created readers. While paused, instead drop each reader
        without unsettled messages; the other readers keep their buffered messages, which `receive` does not return
        until `resume`. Raises InvalidInput after `close`. Raises the error of the last request for the list, unless
        that error is Retryable.
        """
        super()._before_poll()
        is_new = self._watch.take()
        if self._is_paused:
            idle = [
                segment_reader.segment_id
                for segment_reader in self._readers.all
                if segment_reader.reader is None or not segment_reader.reader.in_hand
            ]
            for segment_id in idle:
                self._readers.drop(segment_id)
            self._is_following = False
        elif is_new or not self._is_following:
            self._is_following = True
            self._readers.follow(
                {i: listed.backing_topic for i, listed in self._watch.current.segments.items()}
            )

    def _poll(self) -> QueuedMessage | None:
        """Begin to open the readers that are due, and return a message of the next segment, in rotation, that has a
        message. Return None if no segment has a message at present, and while paused. Every LOOK_SECONDS all logs are
        read, even without a notification. Raises the errors of `_take`.
        """
        if self._is_paused:
            return None
        self._readers.signal_all_if_due()
        self._readers.open_due()
        for segment_reader, segment_buffer in self._readers.with_new_messages():
            message = self._take(segment_reader, segment_buffer)
            if message is not None:
                return QueuedMessage(segment_reader.segment_id, message, segment_buffer)
        return None

    def _take(
        self, segment_reader: ReaderSlot[_SegmentBuffer], segment_buffer: _SegmentBuffer
    ) -> LogMessage | None:
        """Return the next message of the segment, or None if there is none at present. If no message is buffered or
        can be read without blocking, begin a query in a background thread (`_ask`) and return None; a later call uses
        its result. If the result is that the segment is drained, report that to a worker.

        After LostRace, NotFound or FencedOut the attachment is lost: its reader is closed and opened again after a
        delay. DataPlaneUnavailable, or another Terminal, is recorded, and the segment is read again later. None is
        returned in these cases. Other errors of the log are raised.
        """
        try:
            if segment_buffer.is_lost:
                raise LostRace("the attachment was lost during an acknowledgement; receive again", 0.0)
            is_drained: bool | None = segment_reader.take_result()
            if is_drained is None:
                segment_reader.signal.clear()
            message = None if segment_buffer.may_wait() else segment_buffer.next()
            if message is not None:
                segment_reader.succeed()
                segment_reader.signal.set()  # there may be more messages
                segment_reader.setback = None
                self._readers.settled(segment_reader)
                return message
            if is_drained is None:
                self._ask(segment_reader, segment_buffer)
                return None
            segment_reader.succeed()
            if is_drained:
                self._report_drained(segment_reader.segment_id, segment_buffer)
        except (LostRace, NotFound, FencedOut) as error:
            segment_reader.setback = (
                error.message if isinstance(error, LogShortened) else segment_reader.setback
            )
            self._readers.reopen(segment_reader, error if isinstance(error, NotFound) else None)
        # an error of this segment alone; other segments continue
        except (DataPlaneUnavailable, Terminal) as error:
            segment_reader.signal.set()
            segment_reader.fail(error)
        return None

    def _ask(self, segment_reader: ReaderSlot[_SegmentBuffer], segment_buffer: _SegmentBuffer) -> None:
        """Begin a query of the log in a background thread. The query reads messages into the buffer if none are
        buffered and the read may block. The query also finds out whether the segment is drained, if the segment is
        sealed and was not reported as drained in the last `REPEAT_REPORT_SECONDS`. The `as_of` of the present segment
        list is stored for `_report_drained`.

        If neither is needed, no query begins; instead the log counts as reached, which clears its error and its
        delay.
        """
        listed = self._watch.current.segments.get(segment_reader.segment_id)
        is_reported = time.monotonic() < segment_buffer.reported_drained_at + REPEAT_REPORT_SECONDS
        may_be_drained = listed is not None and listed.is_sealed and not is_reported
        if may_be_drained or segment_buffer.may_wait():
            segment_buffer.queried_as_of = self._watch.current.as_of
            self._readers.ask(segment_reader, partial(segment_buffer.ask, may_be_drained=may_be_drained))
        else:
            segment_reader.succeed()

    def _report_drained(self, segment_id: int, segment_buffer: _SegmentBuffer) -> None:
        """Report to a worker, in a background thread, that the segment is drained, and then request the segment list
        again. The report names the `as_of` of the list that was known before the log was queried, so that a worker
        can refuse the report if the queue was moved since. A CleaveError of the report is ignored, because later
        polls repeat the report every `REPEAT_REPORT_SECONDS` while the segment is listed.
        """
        as_of = segment_buffer.queried_as_of
        segment_buffer.reported_drained_at = time.monotonic()

        def report() -> None:
            with suppress(CleaveError):  # the report is repeated later
                self._watch.report_drained([segment_id], as_of)
            self._watch.look_again()

        self._calls.submit(report)

    def _status(self, segment_id: int) -> QueueStatus:
        """Return the status of the segment: the number of its messages that `receive` returned and that are
        not settled, and the reason why no message of the segment is received: a pause, or the reason of
        `SegmentReaders.reason`.
        """
        segment_reader = next(
            (candidate for candidate in self._readers.all if candidate.segment_id == segment_id), None
        )
        in_hand = (
            segment_reader.reader.in_hand
            if segment_reader is not None and segment_reader.reader is not None
            else 0
        )
        reason = "paused" if self._is_paused else self._readers.reason(segment_id, is_paused=False)
        if reason == NO_DATA:
            reason = "no data that others do not have"
        return QueueStatus(segment_id, reason, in_hand)


def _buffer_of(message: QueuedMessage) -> _SegmentBuffer:
    """Return the buffer that delivered the message. Raises InvalidInput for a message of another kind of
    consumer.
    """
    if not isinstance(message.origin, _SegmentBuffer):
        raise InvalidInput(
            "the message was not received by a queue consumer; acknowledge messages that `receive` returned"
        )
    return message.origin
