"""Reads a topic in the order of each key: the buckets that the topic's leader assigns to this consumer,
parents before children.

The session receives the assignment (`session`). The consumer delivers messages of a bucket while it owns the
bucket and reaches its leader. It releases a bucket when the application has acknowledged the delivered
messages, and only then does the next owner read. Only the application acknowledges: closing, or losing a
bucket, acknowledges nothing.

While the application processes a batch, a thread of the consumer opens assigned buckets and releases idle
buckets (`maintenance`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from controller import client_metrics
from controller.client.arguments import checks_arguments
from controller.client.attachments import Attachment, Attachments, settle_each
from controller.client.broken_log_reports import SuspectReports
from controller.client.closing import close_and_deregister
from controller.client.exactly_once_table import Claim, PositionTable
from controller.client.lag import BucketLag, lag_of
from controller.client.maintenance import MaintenanceThread
from controller.client.polling_consumer import PollingConsumer
from controller.client.reader_set import LOOK_SECONDS, WAITS_FOR_RECEIVE
from controller.client.retry import retry_for
from controller.client.servers import Servers
from controller.client.session import BucketReason, Session
from controller.clock import boot_seconds
from controller.dataplane.log_client import LogClient, LogMessage, LogReader, Position
from controller.domain.entry_buckets import MOST_UNITS
from controller.domain.errors import (
    CleaveError,
    DataPlaneUnavailable,
    FencedOut,
    InvalidInput,
    LostRace,
    NotFound,
    StoreUnavailable,
    Terminal,
)
from controller.domain.hash_range import HashRange

_log = logging.getLogger(__name__)

LASTING_SECONDS = 1.0
"""Time after which a continuing reason is reported to the leader."""
MOST_OF_A_REASON = 300


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one bucket of one segment, in order; of a run of buckets if the segment has many.
    Acknowledge it when all messages are processed, or up to the last processed message.
    """

    segment_id: int
    bucket: HashRange
    messages: Sequence[LogMessage]
    origin: object
    """The ownership that the messages came from. An acknowledgement after its end is refused."""
    after: Position | None = None
    """The last message that this ownership delivered before; None if these are its first."""


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """The reason why no message of a bucket is delivered at present. `holders` are the consumers that the
    bucket waits for.
    """

    segment_id: int
    """Segment of the topic."""
    bucket: str
    """Range of hashes of the entry bucket, such as `0000-3fff`."""
    reason: str
    """Why no message comes, in words."""
    holders: tuple[str, ...] = ()
    """Consumers that the bucket waits for."""
    since: str | None = None
    """Time at which the reason began, in ISO 8601, if known."""
    waits_for: tuple[int, ...] = ()
    """Segments that the holders must read to their ends first."""
    backlog: int | None = None
    """Number of unread messages in those segments, if they can be counted."""


@checks_arguments
class StreamConsumer(PollingConsumer[Batch]):
    """One consumer of one subscription. For one thread, which must keep calling `receive`."""

    def __init__(
        self,
        servers: Servers,
        logs: LogClient,
        topic: str,
        subscription: str,
        name: str,
        *,
        batch_messages: int = 500,
        patience_seconds: float = 30.0,
        on_release: Callable[[int, HashRange], None] | None = None,
        positions: PositionTable | None = None,
    ) -> None:
        """Register the consumer under `name`. A second consumer with the same name replaces this consumer. A batch
        has at most `batch_messages` messages. `patience_seconds` bounds how long a call is retried while the data
        plane is out of reach, and how long the constructor is retried while no worker leads the topic.

        `on_release` is called with the segment id and the range of a bucket before the bucket is released to another
        consumer, in the thread that calls this consumer. All delivered messages of the bucket are then acknowledged,
        or dropped by `let_go`. The other consumer waits for the end of the call. `on_release` is not called for a
        bucket that is lost or returned (`give_back`), and not by `close`. Without `on_release`, buckets without
        unacknowledged messages are released while the application is busy.

        `positions` is the table in which `commit` stores positions; messages that `commit` has stored are not
        delivered again. Raises NotFound, TopicNotLive, StoreUnavailable; Conflict for a subscription of another kind;
        InvalidInput for an invalid name; or another error by which a worker refuses the registration.
        """
        super().__init__(patience_seconds, DataPlaneUnavailable, StoreUnavailable)
        self._servers, self.topic, self.subscription, self.name = servers, topic, subscription, name
        self.batch_messages = batch_messages
        """Maximum number of messages of one batch."""
        self.patience_seconds = patience_seconds
        """Time for which a call is retried while the data plane is out of reach."""
        self._on_release, self._positions = on_release, positions
        self._still_working: list[Callable[[], bool]] = []
        self._maintenance = MaintenanceThread(self._maintain)
        self._readers: Attachments = Attachments(
            logs,
            subscription,
            name,
            self._wakeup,
            SuspectReports(servers, topic),
            self._stored,
            self._maintenance.notify,
            self._changed,
        )
        self._has_changed = threading.Event()
        self._session = Session(
            servers,
            topic,
            subscription,
            name,
            on_change=self._changed,
            on_lost=self._lost,
            lasting_reasons=self._lasting_reasons,
            patience_seconds=patience_seconds,
        )
        self._maintenance.start()

    @property
    def segment_ids(self) -> tuple[int, ...]:
        """Ids of the segments of which this consumer reads a bucket, including buckets that are to be
        released.
        """
        return tuple(
            sorted(
                {
                    attachment.owned.segment_id
                    for attachment in self._readers.all
                    if attachment.reader is not None
                }
            )
        )

    @property
    def buckets(self) -> tuple[tuple[int, HashRange], ...]:
        """Segment id and range of each bucket that this consumer reads, without buckets that are to be
        released.
        """
        return tuple(
            (attachment.owned.segment_id, attachment.owned.bucket)
            for attachment in self._readers.all
            if attachment.reader is not None and not attachment.owned.release
        )

    def why(self) -> tuple[BucketStatus, ...]:
        """Return, for each bucket that the subscription reads, the reason why this consumer receives no message of
        the bucket at present. This consumer gives the reason of a bucket that it owns, and the leader gives the
        reason of any other bucket. The leader is queried at each call.

        Raises StoreUnavailable while no worker responds, and the error by which a worker refuses the request.
        """
        own: dict[int, list[Attachment]] = {}
        for attachment in self._readers.all:
            own.setdefault(attachment.owned.segment_id, []).append(attachment)
        statuses = []
        for row in self._session.why():
            bucket = HashRange.parse(row["bucket"])
            overlapping = (
                attachment
                for attachment in own.get(row["segment_id"], ())
                if attachment.owned.bucket.overlaps(bucket)
            )
            owned_here = next(overlapping, None)
            statuses.append(_elsewhere(row) if owned_here is None else self._here(owned_here, row["bucket"]))
        return tuple(statuses)

    def lag(self) -> tuple[BucketLag, ...]:
        """Return the number of unacknowledged messages of each bucket that the subscription reads, whichever
        consumer reads it. The worker counts at each call. Raises StoreUnavailable, or the worker's refusal.
        """
        return lag_of(self._servers, self.topic, self.subscription)

    def receive(self, timeout_seconds: float) -> Batch | None:
        """Return the next messages of one bucket, waiting up to `timeout_seconds`. Return None if there are
        none.

        Raises FencedOut if another consumer registered under this name; TopicNotFound, SubscriptionNotFound
        if either was deleted, or another permanent refusal of a worker; DataPlaneUnavailable, or
        StoreUnavailable for the position table, if there is nothing to read and a bucket was out of reach for
        longer than `patience_seconds`; Terminal if there is nothing to read and a bucket can never be read;
        the errors of `on_release`; InvalidInput after `close`. While only the leader is out of reach, the
        call returns None; TokenOutOfTime is raised once tokens were invalid for longer than
        `patience_seconds`.
        """
        with self._maintenance.turn:
            return super().receive(timeout_seconds)

    def wait(self, timeout_seconds: float) -> None:
        """Wait until there may be messages, a log is to be opened, `wake` is called, or `timeout_seconds` are
        over; at most LOOK_SECONDS. After a signal further calls return at once, until `receive` clears it.
        """
        due_at = self._readers.next_try_at if self._session.is_current else math.inf
        self._wakeup.wait(max(0.0, min(timeout_seconds, due_at - time.monotonic(), LOOK_SECONDS)))

    def wake(self) -> None:
        """End a `wait` or a waiting `receive`. For any thread."""
        self._wakeup.set()

    def has(self, batch: Batch) -> bool:
        """Return True if the ownership that the batch came from still exists. Unacknowledged messages of an
        ended ownership are delivered again.
        """
        return self._readers.holds(batch.origin)

    def owns(self, batch: Batch) -> bool:
        """Return True if the newest assignment still contains this ownership of the bucket, the leader has
        responded recently, and the bucket's reader is open. For any thread.
        """
        attachment = batch.origin
        return (
            isinstance(attachment, Attachment) and attachment.reader is not None and self._is_ours(attachment)
        )

    def may_begin(self, batch: Batch) -> bool:
        """Return True if processing of a message of the batch may begin at this moment: the consumer is not
        paused, and the bucket belongs to it (`owns`). For any thread: call it in the thread that begins.
        """
        return not self._is_paused and self.owns(batch)

    def ask(self, what: str, document: Mapping[str, object]) -> Any:
        """Send a worker a request of this consumer, and return the response. `what` is the last part of the
        request's path, such as `opened`. For any thread. Raises StoreUnavailable, or the worker's refusal.
        """
        return self._session.ask(what, document)

    def acknowledge(
        self, batch: Batch, upto: Position | None = None, *, patience_seconds: float | None = None
    ) -> bool:
        """Acknowledge the batch and all messages before the batch in its bucket, and return True. With `upto`, a
        position, acknowledge only the message at `upto` and all messages before it. `patience_seconds` replaces the
        consumer's value for this call. If the bucket is to be released and all its messages are acknowledged, the
        bucket is released.

        Return False if the bucket no longer belongs to this consumer or was moved by a seek, or if the assignment
        expired because the leader was out of reach. Unacknowledged messages are then delivered again, here or to
        another consumer.

        Raises DataPlaneUnavailable if the result is unknown after `patience_seconds`; call the method again. Raises
        InvalidInput for an `upto` that was not read. Raises the errors of `on_release`; the messages are then
        acknowledged.
        """
        with self._maintenance.turn:
            return self._acknowledge(
                batch, upto, self.patience_seconds if patience_seconds is None else patience_seconds
            )

    def commit(self, batch: Batch, connection: Any) -> None:
        """Store the position of the batch with `connection`, in the transaction that contains the results of the
        batch. The caller commits the transaction, and acknowledges the batch afterwards. The results then contain
        each message exactly once. The consumer must have been created with `positions`.

        Raises FencedOut if the ownership of the batch has ended. Raises AlreadyStored if an earlier transaction with
        these results was committed. Raises Conflict if the results contain some of the messages but not the last one,
        or if earlier delivered messages of the bucket are neither in the results nor acknowledged: process the earlier
        messages first, or return them (`give_back`). Raises InvalidInput for a consumer without `positions`, and the
        errors of the database driver. After an error, roll back the transaction.
        """
        if self._positions is None:
            raise InvalidInput(
                "this consumer stores no positions; create it with `positions` to commit results with them"
            )
        attachment = batch.origin
        if not self._readers.holds(attachment):
            raise FencedOut(
                f"the bucket of segment {batch.segment_id} no longer belongs to this consumer; roll back"
            )
        after = batch.after
        if after is not None and attachment.acknowledged is not None and attachment.acknowledged >= after:
            after = None  # messages without a result, which the application has acknowledged
        first, last = batch.messages[0].position, batch.messages[-1].position
        self._positions.store(connection, self._claim(attachment), last, first=first, after=after)

    def pause(self) -> None:
        """Deliver no messages until `resume`, and keep the buckets, except those that are assigned to another
        consumer. Continue to call `receive`: it raises the error of a consumer that can never continue, and
        with `on_release` only `receive` and `acknowledge` release buckets. For any thread.
        """
        super().pause()
        for attachment in self._readers.all:
            attachment.since(self._reason(attachment))

    def give_back(self, batch: Batch) -> None:
        """Return a batch that cannot be processed. The unacknowledged messages of its bucket are delivered
        again from the first on, here or to another consumer; no later message is delivered before. Here the
        bucket is opened again after a delay, which grows up to a second until a message of the bucket is
        acknowledged. Does nothing if the ownership of the batch has ended.
        """
        attachment = batch.origin
        with self._maintenance.turn:
            if self._readers.holds(attachment):
                self._lose(attachment)

    def let_go(self, batch: Batch) -> bool:
        """Release the bucket of the batch, drop its unacknowledged messages, which its next owner receives, and
        return True. Return True also if the ownership of the batch has ended. Return False, and drop nothing, in two
        cases: the leader has withdrawn its request for the bucket, or the log is being queried. Calls `on_release`,
        also for other buckets that can be released, and raises its errors.
        """
        attachment = batch.origin
        with self._maintenance.turn:
            if not self._readers.holds(attachment):
                return True
            # messages that were dropped from a bucket that stays would not be delivered again
            if not attachment.owned.release or not attachment.is_unused:
                return False
            attachment.delivered = attachment.acknowledged
            self._release()
            return True

    def stay_while(self, is_working: Callable[[], bool]) -> None:
        """Register a function that returns True while messages of this consumer are being processed. If a
        registered function returns True when `close` is called, `close` does not deregister the consumer,
        whose buckets then stay with it for the grace period.
        """
        self._still_working.append(is_working)

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Stop reading, and deregister the consumer. Unacknowledged messages are delivered again, to another consumer
        or to the next consumer of this name. Afterwards `receive` raises InvalidInput. `on_release` is not called.

        If `leave` is True, other consumers take over at once. If `leave` is False, the consumer is not deregistered:
        a process that restarts under this name within the grace period keeps its buckets. While messages are being
        processed that `KeyedWork.close` did not wait for, the consumer is not deregistered either, which is logged:
        otherwise a key would have two owners.

        The call takes at most `timeout_seconds` (default: 30), but may take two seconds if the limit is shorter.
        Readers that are not closed by then are closed in the background. A fifth of the time, and at least a second,
        is reserved for the deregistration, which also happens after an interruption (KeyboardInterrupt). Raises
        InvalidInput, and closes nothing, for a time below 0 or above a day.
        """
        timing = self._begin_close(timeout_seconds)
        self._wakeup.set()  # ends a `receive` that waits
        if leave and any(is_working() for is_working in self._still_working):
            _log.warning(
                "consumer %s of %s, %s: its messages are still being processed, so it stays for the grace period instead of leaving",
                self.name,
                self.topic,
                self.subscription,
            )
            leave = False
        close_and_deregister(
            f"consumer {self.name} of {self.topic}",
            timing,
            self._stop_reading,
            lambda seconds: self._session.close(seconds, leave=leave),
        )

    def _described(self) -> str:
        return f"StreamConsumer of {self.topic}"

    def _before_poll(self) -> None:
        """Raise InvalidInput after `close`, or the reason why the session can never continue
        (`Session.demand_alive`).
        """
        super()._before_poll()
        self._session.demand_alive()

    def _stop_reading(self) -> None:
        self._maintenance.stop()
        self._readers.close()

    def _acknowledge(self, batch: Batch, upto: Position | None, patience_seconds: float) -> bool:
        """Acknowledge all messages of the batch's bucket up to `upto` (None: up to the end of the batch), and return
        True. If the bucket is to be released and all its messages are acknowledged, release the bucket. The
        caller holds the turn of the maintenance thread.

        Return False, and acknowledge nothing, if the ownership has ended, the leader is out of reach, or the log
        refuses this reader (LostRace, NotFound, FencedOut). In the case of the leader and of the log, the reader is
        closed, and reopened if the bucket is still assigned to this consumer.

        Raises DataPlaneUnavailable if the log is out of reach for `patience_seconds`; InvalidInput for an `upto` that
        was not read; and the errors of `on_release`, after which the messages are acknowledged.
        """
        attachment = batch.origin
        if not self._readers.holds(attachment) or attachment.reader is None:
            return False
        if not self._session.is_current:
            self._lose(attachment)
            return False
        reader, position = attachment.reader, batch.messages[-1].position if upto is None else upto
        try:
            retry_for(lambda: reader.acknowledge(position), seconds=patience_seconds)
        except (LostRace, NotFound, FencedOut) as error:
            self._lose(attachment, error)
            return False
        client_metrics.CONSUMER_ACKNOWLEDGED.labels("stream").inc(
            _settled(batch, attachment.acknowledged, position)
        )
        attachment.acknowledged = (
            position if attachment.acknowledged is None else max(attachment.acknowledged, position)
        )
        self._readers.settled(attachment)
        attachment.signal.set()  # the segment may be drained
        if attachment.owned.release:
            self._release()
        return True

    def _reason(self, attachment: Attachment) -> str:
        """Return the reason why no message of an owned bucket is delivered at present: an unreachable leader,
        a pause, or the reason of the attachment.
        """
        if not self._session.is_current:
            return "the leader is out of reach: the bucket may belong to another consumer"
        return "paused" if self._is_paused and not attachment.owned.release else attachment.reason

    def _here(self, attachment: Attachment, bucket: str) -> BucketStatus:
        """Return the status of the bucket with the range `bucket`, which `attachment` contains alone or in a run of
        buckets. The time of the status is the time since which the reason has held (`Attachment.since`).
        """
        reason = self._reason(attachment)
        began_at = datetime.now(UTC) - timedelta(seconds=boot_seconds() - attachment.since(reason))
        return BucketStatus(attachment.owned.segment_id, bucket, reason, (), began_at.isoformat())

    def _lasting_reasons(self) -> list[BucketReason]:
        """Return the reasons, one for each bucket, why owned buckets deliver no messages, for the buckets whose
        reason has held for at least `LASTING_SECONDS`. The reason that a bucket waits for the application's next
        `receive` is left out. The result is empty if there is no such bucket. For any thread.
        """
        now, reasons = boot_seconds(), []
        for attachment in self._readers.all:
            reason = self._reason(attachment)
            since = attachment.since(reason)
            if reason != WAITS_FOR_RECEIVE and now - since >= LASTING_SECONDS:
                line = " ".join(reason.split())[:MOST_OF_A_REASON]  # as leaders accept it
                reasons.append(BucketReason(attachment.owned, line, since))
        return reasons

    def _lost(self) -> None:
        """Close all attachments, because other consumers wait for them and the application may be busy with a
        batch for long.
        """
        self._readers.close_all_in_background()
        self._changed()

    def _changed(self) -> None:
        """Note that the assignment or an attachment has changed, and wake `receive` and the maintenance
        thread.
        """
        self._has_changed.set()
        self._wakeup.set()
        self._maintenance.notify()

    def _maintain(self) -> float:
        """Do the work between two calls of the application: follow the assignment if it may have changed, begin to
        open assigned buckets, and release the buckets that other consumers wait for and that have no unacknowledged
        messages. With `on_release` no bucket is released here, because the function must be called in the
        application's thread; the next `receive` releases the buckets.

        Return the seconds until the next log is to be opened, 0 or less if an opening is due, and infinity if no log
        waits. While the leader is out of reach, do nothing, and return infinity.
        """
        if not self._session.is_current:
            return math.inf
        if self._has_changed.is_set():
            self._has_changed.clear()
            self._adopt()
        if self._on_release is None:
            self._release()
        else:  # the application must be notified first, in its own thread
            self._has_changed.set()
        self._readers.open_due()
        return self._readers.next_try_at - time.monotonic()

    def _due_at(self) -> float:
        """Return the time of the next poll or opening, in `time.monotonic` seconds. Infinity while the leader
        is out of reach.
        """
        return self._readers.due_at if self._session.is_current else math.inf

    def _poll(self) -> Batch | None:
        """Run one poll: follow the assignment if it may have changed, begin to open owned buckets, and return the
        batch of the next bucket, in rotation, that has messages. Return None if no bucket has messages, and while the
        consumer is paused. If a bucket no longer belongs to this consumer after the read, the messages are dropped,
        and the bucket is closed.

        While the leader is out of reach, return None, because the buckets may belong to other consumers. If
        `Session.is_lost` is True by then, all buckets are closed. Raises the errors of `on_release`.
        """
        if self._readers.signal_all_if_due():
            self._has_changed.set()
        if not self._session.is_current:
            if self._session.is_lost:
                self._readers.stop_all()  # other consumers may own their buckets
            return None
        if self._has_changed.is_set():
            self._has_changed.clear()
            self._adopt()
            self._release()
        self._readers.open_due()
        if self._is_paused:
            return None
        for attachment, reader in self._readers.with_new_messages():
            batch = self._read(attachment, reader)
            if batch is not None:
                if self._is_ours(attachment):
                    client_metrics.CONSUMER_MESSAGES.labels("stream").inc(len(batch.messages))
                    return batch
                self._lose(attachment)  # the read took long enough for another consumer to own the bucket
        return None

    def _is_ours(self, attachment: Attachment) -> bool:
        """Return True if the newest assignment contains this very ownership of the bucket, and the leader has
        responded recently. An ownership that ended during a read is not in the assignment.
        """
        assignment = self._session.assignment
        return (
            self._session.is_current
            and assignment is not None
            and attachment.owned.identity in assignment.identities
        )

    def _adopt(self) -> None:
        """Make the attachments follow the newest assignment, and report the released buckets to the leader."""
        released = self._readers.adopt(self._session.assignment)
        if released:
            self._session.report_released(released)

    def _release(self) -> None:
        """Call `on_release` for each bucket that other consumers wait for and whose messages are settled,
        unless its log is being opened or queried, and release the bucket, also if `on_release` raises; the
        last error is raised at the end. `_adopt` reports a release to the leader once the bucket is closed.
        """

        def release(attachment: Attachment) -> None:
            try:
                if self._on_release is not None:
                    self._on_release(attachment.owned.segment_id, attachment.owned.bucket)
            finally:
                self._readers.release(attachment)

        settle_each(self._readers.to_release(), release)

    def _read(self, attachment: Attachment, reader: LogReader) -> Batch | None:
        """Return the next batch of the bucket; None if there is none at present, if this call began a query
        of the log in a background thread (a later call returns the result), if the stored results contain all
        messages that were read, or after an error.

        If the segment is drained, report that to the leader. A lost bucket (LostRace, NotFound, FencedOut) is
        opened again, and so is a bucket whose stored messages cannot be acknowledged. Another
        DataPlaneUnavailable, or Terminal, is recorded, and the bucket is retried later.
        """
        try:
            # the conditions only save requests
            is_over = reader.is_drained if attachment.owned.sealed and attachment.is_idle else None
            result = self._readers.read_or_ask(attachment, reader, self.batch_messages, is_over)
            if result is None:
                return None
            if result.unanswered is not None:
                raise result.unanswered
            attachment.succeed()
            if result.messages:
                return self._batch(attachment, reader, result.messages)
            attachment.since(self._reason(attachment))
            if result.is_end:
                self._session.report_drained([attachment.owned])
        except (LostRace, NotFound, FencedOut) as error:
            self._lose(attachment, error)
        # an error of this bucket alone; other buckets continue
        except (DataPlaneUnavailable, Terminal) as error:
            attachment.signal.set()
            attachment.fail(error)
            attachment.since(self._reason(attachment))
        return None

    def _batch(
        self, attachment: Attachment, reader: LogReader, unfiltered: Sequence[LogMessage]
    ) -> Batch | None:
        """Return the batch of the messages in `unfiltered` that are not in the application's stored results, and
        record these messages as delivered: the bucket is idle only after they are acknowledged, and the next batch
        has the last of them as its `after`. `unfiltered` contains at least one message, in order.

        If the stored results contain all messages, acknowledge the messages to the log, and return None. If the log is
        out of reach then, stop reading the bucket (`_lose`), because only another reader reads the messages again.
        Raises the other errors of `LogReader.acknowledge`. The setback of the bucket is cleared.
        """
        attachment.note_flow()
        attachment.signal.set()
        messages = _beyond(attachment.stored, unfiltered)
        if not messages:  # the log has not received their acknowledgement
            try:
                reader.acknowledge(unfiltered[-1].position)
            except DataPlaneUnavailable as error:
                attachment.setback = f"out of reach: {error}"
                self._lose(attachment)
                return None
            self._readers.settled(attachment)
            self._wakeup.set()
            return None
        after, attachment.delivered = attachment.delivered, messages[-1].position
        return Batch(attachment.owned.segment_id, attachment.owned.bucket, messages, attachment, after)

    def _stored(self, attachment: Attachment) -> Position | None:
        """Claim the bucket's row in the position table, and return the position that the results have
        reached. None if they contain no message, or the consumer has no position table. Raises the errors of
        `PositionTable.claim`.
        """
        return None if self._positions is None else self._positions.claim(self._claim(attachment))

    def _claim(self, attachment: Attachment) -> Claim:
        """Return the ownership of the attachment as the position table identifies it."""
        owned = attachment.owned
        return Claim(
            self._session.topic_id,
            self.subscription,
            attachment.origin,
            owned.segment_id,
            owned.bucket_start,
            owned.generation,
            owned.bucket_end if owned.buckets > MOST_UNITS else None,
        )

    def _lose(self, attachment: Attachment, error: CleaveError | None = None) -> None:
        """Stop reading this bucket; `error` is the cause. If this consumer still owns it, it is reopened, and
        unacknowledged messages are delivered again.
        """
        self._readers.lose(attachment, error)
        self._changed()


def _elsewhere(row: Mapping[str, Any]) -> BucketStatus:
    """Return the leader's status of a bucket for which this consumer has no attachment; usually another
    consumer, or none, owns the bucket. `row` is an object of `Session.why`.
    """
    owner = row["owner"]
    reason = f"owned by {owner}" if row["reason"] == "owned" else row["reason"]
    holders = tuple(row["held_by"] or (() if owner is None else (owner,)))
    return BucketStatus(
        row["segment_id"],
        row["bucket"],
        reason,
        holders,
        row["since"],
        tuple(row["waits_for"]),
        row.get("backlog"),  # an older worker does not send it
    )


def _settled(batch: Batch, before: Position | None, upto: Position) -> int:
    """Return the number of messages of the batch that an acknowledgement of all messages up to `upto` settles,
    without the messages that an earlier acknowledgement, up to `before`, has settled. `before` is None if there was
    no earlier acknowledgement. The result is 0 if `upto` is before the batch.
    """
    if upto < batch.messages[-1].position:
        settled = bisect_right(batch.messages, upto, key=attrgetter("position"))
    else:
        settled = len(batch.messages)
    if before is None or before < batch.messages[0].position:
        return settled
    return max(0, settled - bisect_right(batch.messages, before, key=attrgetter("position")))


def _beyond(stored: Position | None, messages: Sequence[LogMessage]) -> Sequence[LogMessage]:
    """Return the messages that are behind the stored position. `messages` has at least one, in order. A
    stored position that is an offset alone is compared with the offsets.

    Without a stored position, or if all messages are behind it, the same sequence is returned, because the
    log may create each message only when it is accessed.
    """
    if stored is None:
        return messages
    compared = -len(stored)  # positions from before embedded logs had timelines consist of the offset alone
    if messages[0].position[compared:] > stored:
        return messages
    return [message for message in messages if message.position[compared:] > stored]
