"""One producer on one topic: sends numbered batches and knows which of them are stored.

A batch goes out as one entry (or a few, each of at most `ENTRY_BYTES`), cut in the same way each time it is repeated,
since the broker compares only the number of an entry's first message. A producer serves one entry bucket at most, or
the numbers of several buckets' entries would cross and the broker would take some for repeats. Where deduplication is
on, a repeat is stored once. A batch whose answer was lost cannot be repeated once the topic is terminated. Whether it
is stored is then read from the topic, to which nothing can be added any more. So it is where the broker answers that the
topic was terminated: 4.2.4 says so of everything that was under way at that moment, stored or not.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from itertools import chain, count, repeat

import pulsar

from controller.dataplane.base import OutgoingMessage
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.binary import Connections, mapped, mapped_result
from controller.dataplane.pulsar.buckets import marks
from controller.dataplane.pulsar.messages import EntryMarks, outgoing
from controller.dataplane.pulsar.stored import NOWHERE, SentBatch
from controller.dataplane.pulsar.topic_end import TopicEnd
from controller.domain.errors import CleaveError, DataPlaneTimeout, DataPlaneUnavailable, SegmentTerminated
from controller.domain.hash_range import HashRange

ENTRY_BYTES = 1024 * 1024
"""Payload of one entry at most, unless one message is longer; brokers take 5 MiB (`maxMessageSize`)."""
MAX_BATCH_MESSAGES = 1 << 16
"""The low bits of Pulsar's sequence ids number the messages of a batch."""
_NEVER_MS = 24 * 3600 * 1000
"""The library's timer would cut entries by the clock."""
FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.01, 0.16
"""How often a producer that lost its connection looks whether the topic was terminated. Until it knows, it cannot
write. The pauses between looks double, since each look asks a broker that may be away.
"""
LOOK_ANSWER_SECONDS = 1.0
"""A look waits no longer than this, since the answers to the messages may come meanwhile."""
END_KNOWN_SECONDS = 1.0
"""A broker refuses messages for the termination some milliseconds before the topic's end is final. A topic whose end is not final
after this time, or whose broker does not tell, is taken as it is.
"""
_SEND_SHARE = 0.8
"""Part of the time a send may take; what is left goes to opening and closing."""


class BatchSender:
    """Serves one append at a time; others wait."""

    def __init__(
        self,
        connections: Connections,
        end: TopicEnd,
        backing_topic: str,
        producer: str,
        bucket: HashRange | None = None,
    ) -> None:
        self._connections, self._end = connections, end
        self._backing_topic, self._name = backing_topic, producer
        self._bucket = bucket
        if bucket is not None:
            self._name = f"{producer}/{bucket}"
        self._act = f"append to {backing_topic}"
        self._lock = threading.Lock()
        self._producer: pulsar.Producer | None = None
        self._stored = -1  # the last sequence known to be stored whole
        # (ledger, entry): nothing of a batch in doubt lies before it
        self._behind: tuple[int, int] | None = None
        self._in_doubt: int | None = None
        self._answered = 0
        """Messages of the batch in doubt that the broker said it has stored."""

    def append(self, messages: Sequence[OutgoingMessage], sequence: int, deadline: Deadline) -> int:
        """How many messages are stored, from the front; see `LogClient.append`."""
        shared = self._marks(messages)
        with self._lock:
            if sequence <= self._stored:
                return len(messages)

            def send() -> int:
                producer = self._opened(deadline)
                return self._outcome(
                    producer, self._send(producer, messages, shared, sequence), sequence, deadline
                )

            return self._concluded(send, messages, sequence, deadline)

    def begin(
        self, messages: Sequence[OutgoingMessage], sequence: int, deadline: Deadline
    ) -> Callable[[], int] | None:
        """Send them at once, where nothing stands in the way; see `EagerLogClient.begin_append`."""
        shared = self._marks(messages)
        if not self._lock.acquire(blocking=False):
            return None
        producer = self._producer
        if producer is None or sequence <= self._stored or not producer.is_connected():
            self._lock.release()
            return None
        try:
            results = self._send(producer, messages, shared, sequence)
        except BaseException:
            self._lock.release()
            raise

        def answer() -> int:
            try:
                return self._concluded(
                    lambda: self._outcome(producer, results, sequence, deadline), messages, sequence, deadline
                )
            finally:
                self._lock.release()  # by another thread than took it

        return answer

    def open(self, deadline: Deadline) -> None:
        """Open the producer, so that the first append need not wait for it. Raises as `append` does."""
        with self._lock:
            self._opened(deadline)

    def _marks(self, messages: Sequence[OutgoingMessage]) -> EntryMarks | None:
        return None if self._bucket is None else marks(self._bucket, messages)

    def _concluded(
        self,
        outcome: Callable[[], int],
        messages: Sequence[OutgoingMessage],
        sequence: int,
        deadline: Deadline,
    ) -> int:
        try:
            stored = outcome()
        except SegmentTerminated:
            self._drop_producer()
            stored = self._count_stored(messages, sequence, deadline) if self._in_doubt == sequence else 0
            if stored == 0:
                raise
        if stored >= len(messages):
            self._stored, self._in_doubt = sequence, None
        return min(stored, len(messages))

    def close(self) -> None:
        """Close the producer once the append in progress is over."""
        with self._lock:
            self._drop_producer()

    def end(self, within_seconds: float) -> None:
        """The process is ending: send nothing any more. A thread that is not waited for ends where it waits for its turn here, and
        not within the library, which would end the process by force.
        """
        self._lock.acquire(timeout=within_seconds)

    def _drop_producer(self) -> None:
        """Close the producer, so that the library sends nothing of a lost batch later."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(pulsar.PulsarException):
                producer.close()

    def _opened(self, deadline: Deadline) -> pulsar.Producer:
        if self._producer is None:
            end = self._end.place(deadline)
            if self._behind is None and self._in_doubt is None:
                self._behind = end
            try:
                self._producer = self._connections.open(
                    self._act, deadline, lambda client: self._build(client, deadline)
                )
            except pulsar.PulsarException as error:
                raise mapped(error, self._act) from error
        return self._producer

    def _build(self, client: pulsar.Client, deadline: Deadline) -> pulsar.Producer:
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
        shared: EntryMarks | None,
        sequence: int,
    ) -> _Results:
        """Give them to the library, which sends them at once, and makes no entry with later ones of them. What is the entry's is told by
        its first message, which each may be where the library cuts them into several.
        """
        is_one = _is_one_entry(messages)
        results = _Results(len(messages), together=is_one)
        numbers = count(_first_sequence_id(sequence))
        carried = chain([shared], repeat(None)) if is_one else repeat(shared)
        answers = chain(repeat(None, len(messages) - 1), [results]) if is_one else repeat(results)
        send = producer._producer.send_async
        try:
            for message, number, carries, answer in zip(messages, numbers, carried, answers, strict=False):
                send(outgoing(message, number, carries), answer)
        except pulsar.PulsarException as error:
            results(error, None)
        producer._producer.flush_async(_ignore)  # whose outcome says less than the messages' results
        return results

    def _outcome(
        self, producer: pulsar.Producer, results: _Results, sequence: int, deadline: Deadline
    ) -> int:
        """Wait: how many are stored, from the front. Raises what kept the first one from being stored, and whatever leaves it open
        what is.
        """
        try:
            terminated = self._await(producer, results, deadline)
        except CleaveError:  # for instance the topic is gone: it cannot be known what of the batch was stored
            self._in_doubt, self._answered = sequence, 0
            raise
        stored, failure = results.outcome(self._act)
        if failure is None:
            # A repeat that the broker knew already has no position. Then the topic's end lies after it.
            self._behind = results.last_place or self._end.place(deadline)
            return stored
        self._in_doubt, self._answered = sequence, stored
        if terminated is not None:
            self._producer = None
            self._connections.run_aside(producer.close)  # which waits for a connection that it cannot have
            raise terminated
        self._drop_producer()
        raise failure

    def _await(
        self, producer: pulsar.Producer, results: _Results, deadline: Deadline
    ) -> SegmentTerminated | None:
        """Wait for the results. If the topic is terminated meanwhile the library goes on trying to connect, so this
        looks for that itself.
        """
        look_seconds = FIRST_LOOK_SECONDS
        while not results.complete.wait(min(look_seconds, deadline.left_seconds)):
            if not deadline.left_seconds:
                return None
            if producer.is_connected():
                continue
            if self._is_terminated(deadline):
                return SegmentTerminated(
                    f"{self._act}: it was terminated under way; look up the layout again", delay_seconds=0.0
                )
            look_seconds = min(2 * look_seconds, LONGEST_LOOK_SECONDS)
        return None

    def _is_terminated(self, deadline: Deadline) -> bool:
        """Whether the topic is terminated, as far as is known: while no broker answers, nobody can say."""
        soon = Deadline(min(LOOK_ANSWER_SECONDS, deadline.left_seconds))
        try:
            return self._end.is_terminated(soon)
        except DataPlaneUnavailable:
            return False

    def _count_stored(self, messages: Sequence[OutgoingMessage], sequence: int, deadline: Deadline) -> int:
        """Return how many of the batch in doubt are stored, from its front, now that the topic is terminated. Looks again until all
        are found or the topic's end is final.
        """
        batch = SentBatch(self._name, _first_sequence_id(sequence), len(messages))
        until_known = Deadline(END_KNOWN_SECONDS)
        while True:
            found, is_final = self._end.stored_of(batch, self._behind or NOWHERE, deadline)
            if found == len(messages) or is_final or not until_known.left_seconds:
                return max(found, self._answered)
            threading.Event().wait(FIRST_LOOK_SECONDS)


def _first_sequence_id(sequence: int) -> int:
    return (sequence + 1) * MAX_BATCH_MESSAGES  # the library takes 0 for none given


def _ignore(_result: pulsar.Result) -> None:
    pass


def _is_one_entry(messages: Sequence[OutgoingMessage]) -> bool:
    """Whether the library makes one entry of them for sure, all of which is stored or nothing."""
    payloads = sum([len(message.payload) for message in messages])
    return payloads + sum([one.size for *_, one in messages if one is not None]) <= ENTRY_BYTES // 2


class _Results:
    """What became of each message. The library's thread fills it in, so it must raise nothing. Of messages that are one entry it
    is told once: each call from that thread costs more than the rest of sending a message.
    """

    def __init__(self, expected: int, *, together: bool) -> None:
        """`together`: one answer stands for all of them."""
        self._expected, self._together = expected, together
        self.found: list[tuple[object, pulsar.MessageId | None]] = []
        self.complete = threading.Event()
        self.last_place: tuple[int, int] | None = None

    def __call__(self, result: object, message_id: pulsar.MessageId | None) -> None:
        self.found.append((result, message_id))
        if self._together or len(self.found) >= self._expected:
            self.complete.set()

    def outcome(self, act: str) -> tuple[int, CleaveError | None]:
        """How many are stored from the front, and what stopped the next one."""
        stored = 0
        for result, message_id in list(self.found):
            if isinstance(result, Exception):
                return stored, mapped(result, act)
            if result != pulsar.Result.Ok:
                return stored, mapped_result(result, act)
            stored += self._expected if self._together else 1
            if message_id is not None and message_id.ledger_id() >= 0:  # a repeat has no place of its own
                self.last_place = (message_id.ledger_id(), message_id.entry_id())
        if stored < self._expected:
            return stored, DataPlaneTimeout(f"{act}: {stored} of {self._expected} messages answered in time")
        return stored, None
