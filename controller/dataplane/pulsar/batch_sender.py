"""Sends numbered batches with one producer on one topic, and knows which of them are stored.

A batch is sent as one entry, or as a few entries of at most `ENTRY_BYTES` each. A repeated batch is divided
in the same way, because the broker compares only the number of an entry's first message. A producer serves at
most one entry bucket: otherwise the numbers of several buckets' entries would cross, and the broker would
take some entries for repeats.

With deduplication, a repeated batch is stored once. A batch whose response was lost cannot be repeated once
the topic is terminated. The sender then reads from the topic, to which nothing can be added, if the batch is
stored. It does the same if the broker reports that the topic was terminated: 4.2.4 reports that for every
batch in flight at that moment, stored or not.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, repeat

import pulsar

from controller.dataplane.log_client import OutgoingMessage
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.binary import Connections
from controller.dataplane.pulsar.bucket_slots import marks
from controller.dataplane.pulsar.library_errors import mapped, mapped_result
from controller.dataplane.pulsar.messages import EntryMarks, outgoing
from controller.dataplane.pulsar.stored_entries import NOWHERE, SentBatch, StoredPart
from controller.dataplane.pulsar.topic_end import TopicEnd
from controller.domain.errors import CleaveError, DataPlaneTimeout, DataPlaneUnavailable, SegmentTerminated
from controller.domain.hash_range import HashRange

ENTRY_BYTES = 1024 * 1024
"""Largest size of one entry, unless a single message is larger. Brokers accept 5 MiB (`maxMessageSize`)."""
_MESSAGE_BYTES = 64
"""Size that is counted for each message in addition to payload, key and properties."""
MAX_BATCH_MESSAGES = 1 << 16
"""Largest number of messages of a batch. The low bits of Pulsar's sequence ids number the messages of a
batch.
"""
_NEVER_MS = 24 * 3600 * 1000
"""A publish delay that never expires, because the library's timer would divide batches by time."""
FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.01, 0.16
"""First and longest delay between two checks whether the topic was terminated, by a producer that lost its
connection. The producer cannot write until the result is known. The delay doubles, because each check calls a
broker that may be out of reach.
"""
LOOK_ANSWER_SECONDS = 1.0
"""Longest wait for a check, because responses to the messages may arrive meanwhile."""
END_KNOWN_SECONDS = 1.0
"""Longest wait until the topic's end is final. A broker refuses messages because of the termination some
milliseconds before that. If the end is not final after this time, or the broker does not report it, the
present state counts.
"""
_SEND_SHARE = 0.8
"""Part of the time limit that a send may take. The rest is for opening and closing."""


class BatchSender:
    """The producer of one topic and bucket, opened when it is needed. Safe to share between threads; one
    append is in progress at a time, and others wait. `producer` is the application's producer name.

    The caller of a private method, except `_turn` and `_entry_marks`, holds the lock of the sender.
    """

    def __init__(
        self,
        connections: Connections,
        end: TopicEnd,
        backing_topic: str,
        producer: str,
        bucket: HashRange | None = None,
    ) -> None:
        """Create the sender without a producer. `end` reads the end of the topic, for all senders of a
        client. Messages of `bucket` are marked; None: the segment has one bucket.
        """
        self._connections, self._end = connections, end
        self._backing_topic, self._name = backing_topic, producer
        self._bucket = bucket
        if bucket is not None:
            self._name = f"{producer}/{bucket}"
        self._purpose = f"append to {backing_topic}"
        self._lock = threading.Lock()
        self._producer: pulsar.Producer | None = None
        self._stored = -1  # the last sequence whose batch is known to be stored whole
        # (ledger, entry) before which no entry of a batch in doubt can be
        self._behind: tuple[int, int] | None = None
        self._in_doubt: int | None = None
        self._answered = 0
        """Number of messages of the batch in doubt that the broker has reported as stored."""

    def append(self, messages: Sequence[OutgoingMessage], sequence: int, deadline: Deadline) -> int:
        """Send the batch, at least one message, and return the number of messages, from its front, that are
        stored. The number is lower than that of the batch only if the topic was terminated meanwhile. A batch
        whose `sequence` (0 or more) is not above the last one that this sender knows to be stored counts as
        stored, and is not sent.

        Opens the producer if necessary. If the topic was terminated, reads from the topic how many messages
        of the batch are stored. Waits for another append of this sender, at most until the deadline. Raises
        InvalidInput for a message outside the bucket; Unsupported for bucket `0000-0000`; SegmentNotFound;
        SegmentTerminated if no message is stored; DataPlaneTimeout at the deadline; other errors of the library
        as Cleave's. After DataPlaneUnavailable or DataPlaneTimeout the batch may be stored: repeat it under its
        number.
        """
        entry_marks = self._entry_marks(messages)
        with self._turn(deadline):
            if sequence <= self._stored:
                return len(messages)

            def send() -> int:
                producer = self._opened(deadline)
                return self._outcome(
                    producer, self._send(producer, messages, entry_marks, sequence), sequence, deadline
                )

            return self._conclude(send, messages, sequence, deadline)

    def begin(
        self, messages: Sequence[OutgoingMessage], sequence: int, deadline: Deadline
    ) -> Callable[[], int] | None:
        """Send the messages, at least one, and return a function that waits for the result. The function has the
        result and the errors of `append`. Return None, and send nothing, if another append is in progress, if no
        producer is open and connected, or if `sequence` is not above the last one that this sender knows to be
        stored.

        The caller must call the function, in any thread: until the function has ended, other appends of this sender
        wait, each at most until its own deadline. Raises InvalidInput for a message outside the bucket, and
        Unsupported for bucket `0000-0000`; nothing is sent then.
        """
        entry_marks = self._entry_marks(messages)
        if not self._lock.acquire(blocking=False):
            return None
        producer = self._producer
        if producer is None or sequence <= self._stored or not producer.is_connected():
            self._lock.release()
            return None
        try:
            results = self._send(producer, messages, entry_marks, sequence)
        except BaseException:
            self._lock.release()
            raise

        def answer() -> int:
            try:
                return self._conclude(
                    lambda: self._outcome(producer, results, sequence, deadline), messages, sequence, deadline
                )
            finally:
                self._lock.release()  # another thread than the one that acquired it

        return answer

    def open(self, deadline: Deadline) -> None:
        """Open the producer unless it is open, so that the first append need not wait for the opening. Waits for an
        append in progress, at most until the deadline. Raises SegmentNotFound; SegmentTerminated; DataPlaneTimeout at
        the deadline; and other errors of `AdminCalls.ask` and of the library as Cleave's.
        """
        with self._turn(deadline):
            self._opened(deadline)

    @contextlib.contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[None]:
        """Hold the lock of the sender during the block. Waits for the append that has the lock. Raises
        DataPlaneTimeout, and does not run the block, if that append has not ended at the deadline.
        """
        if not self._lock.acquire(timeout=deadline.left_seconds):
            raise DataPlaneTimeout(
                f"{self._purpose}: an earlier append of producer {self._name} did not end within "
                f"{deadline.seconds:g} s; repeat the batch"
            )
        try:
            yield
        finally:
            self._lock.release()

    def _entry_marks(self, messages: Sequence[OutgoingMessage]) -> EntryMarks | None:
        """Return the marks of the batch's entries. None without a bucket. Raises InvalidInput for a message
        outside the bucket, and Unsupported for bucket `0000-0000`.
        """
        return None if self._bucket is None else marks(self._bucket, messages)

    def _conclude(
        self,
        outcome: Callable[[], int],
        messages: Sequence[OutgoingMessage],
        sequence: int,
        deadline: Deadline,
    ) -> int:
        """Call `outcome`, a function that returns the number of messages of the batch, from the front, that are
        stored, and return that number. If all messages are stored, record the batch with the number `sequence` as
        stored.

        If `outcome` raises SegmentTerminated, close the producer. If the batch is in doubt (this call or an earlier
        one sent the batch, and the result is unknown), return the number of messages that the topic has stored
        (`_count_stored`). SegmentTerminated is raised again if that number is 0, or if the batch is not in doubt.

        Raises the errors of `_count_stored`, such as DataPlaneTimeout at the deadline, and the other errors of
        `outcome` unchanged.
        """
        try:
            stored = outcome()
        except SegmentTerminated:
            self._drop_producer(deadline)
            stored = self._count_stored(messages, sequence, deadline) if self._in_doubt == sequence else 0
            if stored == 0:
                raise
        if stored >= len(messages):
            self._stored, self._in_doubt = sequence, None
        return min(stored, len(messages))

    def close(self, deadline: Deadline) -> None:
        """Wait for the append in progress, then close the producer. Waits for both at most until the deadline, and
        raises nothing. If the append is still in progress at the deadline, the producer stays open until its client
        is closed. A later append opens another producer.
        """
        if self._lock.acquire(timeout=deadline.left_seconds):
            try:
                self._drop_producer(deadline)
            finally:
                self._lock.release()

    def end(self, within_seconds: float) -> None:
        """Send nothing more, because the process is ending: wait up to `within_seconds` for the append in
        progress, and keep the lock forever.

        A thread that the process does not wait for then ends while it waits for this lock. Inside the
        library, the end of the thread would kill the process.
        """
        self._lock.acquire(timeout=within_seconds)

    def _drop_producer(self, deadline: Deadline) -> None:
        """Begin to close the producer, if there is one, so that the library does not send messages of a lost batch
        later, and wait for the broker's response at most until the deadline. Errors of the library are ignored; the
        next append opens another producer.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            is_closed = threading.Event()
            with contextlib.suppress(pulsar.PulsarException):
                producer._producer.close_async(lambda _result: is_closed.set())
                is_closed.wait(deadline.left_seconds)

    def _drop_unconnected_producer(self) -> None:
        """Forget the producer, and close it in a background thread, because `close` waits for a connection that the
        producer cannot get. Errors are ignored. Does nothing without a producer. The next append opens another
        producer.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            self._connections.run_aside(producer.close)

    def _opened(self, deadline: Deadline) -> pulsar.Producer:
        """Return the open producer. If there is none, read the end of the topic and open a producer. Before the first
        opening, that end is recorded as the place behind which all entries of a batch in doubt (sent, with an unknown
        result) must lie.

        Raises SegmentNotFound; SegmentTerminated; DataPlaneTimeout at the deadline; the other errors of
        `AdminCalls.ask`; and other errors of the library as Cleave's.
        """
        if self._producer is None:
            end = self._end.place(deadline)
            if self._behind is None and self._in_doubt is None:
                self._behind = end
            try:
                self._producer = self._connections.open(
                    self._purpose, deadline, lambda client: self._build(client, deadline)
                )
            except pulsar.PulsarException as error:
                raise mapped(error, self._purpose) from error
        return self._producer

    def _build(self, client: pulsar.Client, deadline: Deadline) -> pulsar.Producer:
        """Open and return a producer of the library on `client`. The producer makes one entry of the messages between
        two flushes: its own limits count messages, payloads and time, and an entry of several messages (`_entries`)
        reaches none of these limits. The time limit of a send is a part of the deadline's seconds. Raises the errors
        of the library unmapped, such as `pulsar.TopicTerminated`.
        """
        return client.create_producer(
            self._backing_topic,
            producer_name=self._name,
            send_timeout_millis=max(100, int(deadline.seconds * _SEND_SHARE * 1000)),
            max_pending_messages=MAX_BATCH_MESSAGES,
            batching_enabled=True,
            batching_max_messages=MAX_BATCH_MESSAGES,
            batching_max_allowed_size_in_bytes=ENTRY_BYTES,
            batching_max_publish_delay_ms=_NEVER_MS,
            **self._connections.encrypting,
        )

    def _send(
        self,
        producer: pulsar.Producer,
        messages: Sequence[OutgoingMessage],
        entry_marks: EntryMarks | None,
        sequence: int,
    ) -> _Results:
        """Pass the messages to the library, which sends them at once, and return an object to which the library adds
        the result of each entry when the result arrives. An error of the library is added as a result too, and is
        not raised.

        The first message of each entry carries `entry_marks`, the marks of the entry (None: no marks). `sequence` is
        the number of the batch as in `append`. After an error the begun entry is not flushed, because the broker
        would then drop the whole entry, when it is repeated, as a repeat.
        """
        entries, numbers = _entries(messages), count(_first_sequence_id(sequence))
        results = _Results([len(entry) for entry in entries])
        send, flush = producer._producer.send_async, producer._producer.flush_async
        try:
            for entry in entries:
                marks_of_messages = chain([entry_marks], repeat(None))
                answers = chain(repeat(None, len(entry) - 1), [results])
                for message, number, message_marks, answer in zip(
                    entry, numbers, marks_of_messages, answers, strict=False
                ):
                    send(outgoing(message, number, message_marks), answer)
                flush(_ignore)  # its result says less than the result of the entry
        except pulsar.PulsarException as error:
            results(error, None)
        return results

    def _outcome(
        self, producer: pulsar.Producer, results: _Results, sequence: int, deadline: Deadline
    ) -> int:
        """Wait for `results`, the results of the batch with the number `sequence`, and return the number of messages
        if all are stored. The place of the last stored message is recorded. If the results contain no place, because
        the batch was a repeat, the end of the topic is read; an error of that request is raised, and the producer
        stays open.

        If a message is not stored, or its result is not known at the deadline, the error of the first such message is
        raised: SegmentTerminated, DataPlaneTimeout or another. If the producer loses its connection, the topic is
        checked. SegmentTerminated is raised if the topic is terminated, SegmentNotFound if the topic is missing, and
        another lasting refusal of the check. In all these cases the batch is in doubt afterwards, and the producer is
        closed.
        """
        try:
            terminated = self._await(producer, results, deadline)
        # for instance because the topic was deleted: the result of the batch cannot be known
        except CleaveError:
            self._in_doubt, self._answered = sequence, 0
            self._drop_unconnected_producer()
            raise
        stored, failure = results.outcome(self._purpose)
        if failure is None:
            if results.last_place is not None:
                part = StoredPart(self._name, _first_sequence_id(sequence) + stored)
                self._end.note_stored(results.last_place, part)
            # A repeated message that the broker recognized has no position. The topic's end is then behind
            # it.
            self._behind = results.last_place or self._end.place(deadline)
            return stored
        self._in_doubt, self._answered = sequence, stored
        if terminated is not None:
            self._drop_unconnected_producer()
            raise terminated
        self._drop_producer(deadline)
        raise failure

    def _await(
        self, producer: pulsar.Producer, results: _Results, deadline: Deadline
    ) -> SegmentTerminated | None:
        """Wait until all results have arrived, at most until the deadline. Return SegmentTerminated, without raising
        it, if the producer has lost its connection and the topic is terminated. Return None otherwise, also if
        results are missing at the deadline.

        While the producer has no connection, the topic is checked repeatedly, because the library would keep trying
        to connect to a terminated topic. A check that fails temporarily counts as not terminated. Raises
        SegmentNotFound and other lasting refusals of the check.
        """
        look_seconds = FIRST_LOOK_SECONDS
        while not results.complete.wait(min(look_seconds, deadline.left_seconds)):
            if not deadline.left_seconds:
                return None
            if producer.is_connected():
                continue
            # A broker that restarts gets many of these requests, and the metadata of ledgers is costly.
            if self._is_terminated(deadline, with_end=look_seconds == FIRST_LOOK_SECONDS):
                return SegmentTerminated(
                    f"{self._purpose}: the topic was terminated during the append; look up the layout again",
                    delay_seconds=0.0,
                )
            look_seconds = min(2 * look_seconds, LONGEST_LOOK_SECONDS)
        return None

    def _is_terminated(self, deadline: Deadline, *, with_end: bool) -> bool:
        """Return True if the topic is known to be terminated. False also if the request fails temporarily, or no
        broker responds within `LOOK_ANSWER_SECONDS`. `with_end` is that of `TopicEnd.is_terminated`. Raises
        SegmentNotFound and other lasting refusals.
        """
        check_deadline = Deadline(min(LOOK_ANSWER_SECONDS, deadline.left_seconds))
        try:
            return self._end.is_terminated(check_deadline, with_end=with_end)
        except DataPlaneUnavailable:
            return False

    def _count_stored(self, messages: Sequence[OutgoingMessage], sequence: int, deadline: Deadline) -> int:
        """Return the number of messages of the batch in doubt, from its front, that the terminated topic has stored.
        The number is at least the number of messages that the broker has reported as stored. `sequence` is the number
        of the batch as in `append`, not Pulsar's sequence id.

        Reads from the topic again until all messages are stored, or the topic's end is final, or `END_KNOWN_SECONDS`
        have passed. Raises DataPlaneTimeout at the deadline; SegmentNotFound; and the other errors of
        `AdminCalls.ask`.
        """
        batch = SentBatch(self._name, _first_sequence_id(sequence), len(messages))
        until_known = Deadline(END_KNOWN_SECONDS)
        while True:
            stored, is_final = self._end.stored_of(batch, self._behind or NOWHERE, deadline)
            if stored == len(messages) or is_final or not until_known.left_seconds:
                return max(stored, self._answered)
            threading.Event().wait(FIRST_LOOK_SECONDS)


def _first_sequence_id(sequence: int) -> int:
    """Return Pulsar's sequence id of the first message of the batch with this number."""
    return (sequence + 1) * MAX_BATCH_MESSAGES  # the library takes 0 for no sequence id


def _ignore(_result: pulsar.Result) -> None:
    pass


def _entries(messages: Sequence[OutgoingMessage]) -> list[Sequence[OutgoingMessage]]:
    """Divide a batch into entries of at most `ENTRY_BYTES`, each of at least one message. Equal batches are divided in
    the same way. Each entry is stored whole or not at all.
    """
    sizes = [
        len(payload) + len(key or b"") + (0 if metadata is None else metadata.size) + _MESSAGE_BYTES
        for payload, key, _, metadata in messages
    ]
    if sum(sizes) <= ENTRY_BYTES:
        return [messages]
    entries: list[Sequence[OutgoingMessage]] = []
    first = entry_size = 0
    for place, size in enumerate(sizes):
        if first < place and entry_size + size > ENTRY_BYTES:
            entries.append(messages[first:place])
            first, entry_size = place, 0
        entry_size += size
    return [*entries, messages[first:]]


class _Results:
    """The result of each entry. The library's thread calls the object, and the sending thread does if the
    library refuses a message; a call must raise nothing.

    Only the last message of an entry has its result reported, because each call from that thread costs more
    than the rest of sending a message.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        """Expect the results of entries with these numbers of messages."""
        self._sizes = sizes
        self.results: list[tuple[object, pulsar.MessageId | None]] = []
        self.complete = threading.Event()
        self.last_place: tuple[int, int] | None = None

    def __call__(self, result: object, message_id: pulsar.MessageId | None) -> None:
        self.results.append((result, message_id))
        if len(self.results) >= len(self._sizes):
            self.complete.set()

    def outcome(self, purpose: str) -> tuple[int, CleaveError | None]:
        """Return the number of messages, from the front, that are stored, and the error of the next entry:
        DataPlaneTimeout if its result is missing, None if all are stored. Entries behind that one do not count.

        Sets `last_place` to the place (ledger, entry) of the last of these stored entries whose result has a
        position; repeated entries have none. Without any, `last_place` is unchanged (at first None).
        """
        stored = 0
        for size, (result, message_id) in zip(self._sizes, list(self.results), strict=False):
            if isinstance(result, Exception):
                return stored, mapped(result, purpose)
            if result != pulsar.Result.Ok:
                return stored, mapped_result(result, purpose)
            stored += size
            if message_id is not None and message_id.ledger_id() >= 0:  # a repeated entry has no position
                self.last_place = (message_id.ledger_id(), message_id.entry_id())
        expected = sum(self._sizes)
        if stored < expected:
            return stored, DataPlaneTimeout(f"{purpose}: {stored} of {expected} messages answered in time")
        return stored, None
