"""Appends to embedded logs, and opens readers on them.

A batch is one statement and so one transaction: it is stored whole or not at all, and the log is locked only
while the server works (`embedded.append` says why it is not a COPY). The notification is a separate call
after the commit, because inside the transaction it would serialize the commits of all appends of the
database.

This module and `reader` call only functions of the schema `embedded`, because the role `cleave_client` may
call these functions and nothing else.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Literal

from sqlalchemy import URL

from controller.clock import boot_seconds
from controller.dataplane.embedded.metadata import written
from controller.dataplane.embedded.names import ARRIVALS, checked, no_cursor, no_log
from controller.dataplane.embedded.position_reader import EmbeddedPositionReader, beyond_end, trimmed
from controller.dataplane.embedded.queue_reader import LIFE_SECONDS, EmbeddedQueueReader, QueueKeeper
from controller.dataplane.embedded.reader import EmbeddedReader
from controller.dataplane.embedded.timelines import Place, shortened, timeline_and_offset
from controller.dataplane.log_client import OutgoingMessage, Ownership, Position
from controller.dataplane.postgres_calls import PostgresCalls
from controller.dataplane.postgres_listener import PostgresListener
from controller.domain.errors import CleaveError, FencedOut, InvalidInput, LostRace, SegmentTerminated
from controller.domain.hash_range import FULL_RANGE, HashRange, hexadecimal
from controller.domain.key_hash import key_hash
from controller.forks import OneProcess
from controller.postgres.address import DatabaseAddress

MAX_BATCH_BYTES = 16 * 1024 * 1024
"""Largest total size of keys and payloads of one append. The statement that carries them is twice as long."""

_APPEND = """
SELECT outcome, log_id FROM embedded.append(%s, %s, %s, %s, %s::bytea[], %s::bytea[], %s::integer[], %s::jsonb[])
"""
_TAKE = """
SELECT outcome, log_id, generation, start, holder, timeline FROM embedded.take(%s, %s, %s, %s::text[], %s, %s, %s, %s)
"""
_LOCATE = """
SELECT timeline, coalesce(at_instant, next_offset) - 1 FROM embedded.bounds(%s, to_timestamp(%s / 1000.0))
"""
_OPEN_AT = "SELECT log_id, first_offset, next_offset, start, timeline FROM embedded.open_at(%s, %s, %s)"
_OPEN_QUEUE = "SELECT outcome, log_id FROM embedded.queue_open(%s, %s, %s, %s, %s)"


_Reader = EmbeddedReader | EmbeddedPositionReader | EmbeddedQueueReader


class EmbeddedLogClient(OneProcess):
    """A `MessageLogClient` on the PostgreSQL at `url`. Connects at the first call, and listens from the first reader
    on.

    Calls raise DataPlaneUnavailable if PostgreSQL cannot serve them at present, and DataPlaneTimeout without
    an answer within `call_timeout_seconds`.
    """

    delivers_single_messages: Literal[True] = True

    def __init__(
        self,
        url: str | URL | DatabaseAddress,
        *,
        call_timeout_seconds: float = 5.0,
        queue_life_seconds: float = LIFE_SECONDS,
    ) -> None:
        """Create the client without connecting. At most five connections serve calls, and the listening thread uses
        another. A queue reader whose life neither a read nor `QueueKeeper` extends for
        `queue_life_seconds` (at most 3600, which `open_queue_reader` checks) counts as dead, and its messages are
        delivered to others. Raises InvalidInput for an invalid `url`.
        """
        self._url = url
        self._calls = PostgresCalls(url, call_timeout_seconds=call_timeout_seconds)
        self._lock = threading.Lock()
        self._listener: PostgresListener | None = None
        self._callbacks: dict[_Reader, tuple[int, Callable[[], None]]] = {}
        self._queue_life_seconds = queue_life_seconds
        self._keeper = QueueKeeper(self._calls, queue_life_seconds)

    def append(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        producer: str,
        sequence: int,
        bucket: HashRange | None = None,
    ) -> int:
        """Store a batch whole, notify the log's readers, and return the number of messages in the batch. For an empty
        batch, only check the producer name, and return 0.

        `sequence` (0 or more) rises with each batch of the producer in this log. A batch whose `sequence` is not
        above the last one that the log has stored of the producer counts as stored, even if the log is terminated:
        the batch is not stored again, and the number of its messages is returned. An error of the notification is
        ignored.

        Raises InvalidInput for a message whose bucket hash is outside `bucket` (None: outside the hash ring), for a
        batch above `MAX_BATCH_BYTES` (of keys and payloads, or of metadata) or above 100,000 messages, for metadata
        with NUL or half of a surrogate pair, for a negative `sequence`, and for an invalid producer name; Terminal
        for a producer name that another login used in this log; SegmentTerminated; SegmentNotFound. After
        DataPlaneUnavailable or DataPlaneTimeout the batch may be stored: repeat the batch with the same `sequence`.
        """
        checked("producer", producer)
        if not messages:
            return 0
        batch_bytes = sum(len(m.payload) + len(m.key or b"") for m in messages)
        if batch_bytes > MAX_BATCH_BYTES:
            raise InvalidInput(
                f"a batch of {batch_bytes} bytes for {backing_topic}: append at most {MAX_BATCH_BYTES} at once"
            )
        hashes = _bucket_hashes(messages, FULL_RANGE if bucket is None else bucket)
        keys, payloads = _array(m.key for m in messages), _array(m.payload for m in messages)
        metadata = [written(m.metadata) for m in messages]
        sent_metadata = metadata if any(metadata) else None
        parameters = (backing_topic, producer, sequence, batch_bytes, keys, payloads, hashes, sent_metadata)
        ((outcome, log_id),) = self._calls.rows(f"append to {backing_topic}", _APPEND, parameters)
        if outcome == "missing":
            raise no_log(backing_topic)
        if outcome == "terminated":
            raise SegmentTerminated(
                f"{backing_topic} is terminated; look up the layout again and send to its successors",
                delay_seconds=0.0,
            )
        self._notify(log_id)
        return len(messages)

    def open_reader(
        self,
        backing_topic: str,
        subscription: str,
        *,
        owner: str,
        live_owners: Collection[str],
        on_arrival: Callable[[], None],
        bucket: HashRange | None = None,
        ownership: Ownership | None = None,
    ) -> EmbeddedReader:
        """Take the subscription's cursor, or the part of the cursor in the range `bucket` (None: the whole cursor),
        and return a reader that begins at the cursor's position. The first reader of the client starts the thread
        that listens for notifications. This thread calls `on_arrival` when the log may have messages to read.

        The range is taken whole or not at all. A reader of another process or of this one that has a part of the
        range loses all its parts if its owner is not among `live_owners`, or is `owner`. If the subscription is read
        as a queue, the queue ends: messages from the first unacknowledged message on are delivered again, even if
        they were acknowledged.

        Raises LostRace while another owner among `live_owners` has a part of the range; FencedOut if a part was taken
        under a later `ownership` (None: ownerships are not compared), or if no leader has assigned `ownership` yet;
        SegmentNotFound; SubscriptionNotFound; InvalidInput for a bucket that does not consist of entry buckets of the
        log, and for an owner's name that is empty, too long or cannot be stored; and the errors of the class. For a
        log that does not store its entry buckets any range is valid, but DataPlaneUnavailable is raised if the cursor
        would have more than 1024 parts.
        """
        self._listen()
        bucket = FULL_RANGE if bucket is None else bucket
        names = (backing_topic, subscription, checked("owner", owner), list(live_owners))
        parameters = (*names, bucket.start, bucket.end, *(ownership or (None, None)))
        [row] = self._calls.rows(f"read {backing_topic} as {owner!r}", _TAKE, parameters)
        outcome, log_id, generation, start, holder, timeline = row
        if outcome != "taken":
            raise _refusal(backing_topic, subscription, outcome, holder)
        reader = EmbeddedReader(
            self._calls,
            backing_topic=backing_topic,
            subscription=subscription,
            owner=owner,
            bucket=bucket,
            log_id=log_id,
            generation=generation,
            place=Place(start, timeline),
            on_arrival=on_arrival,
            on_close=lambda: self._forget(reader),
        )
        self._watch(reader, log_id, on_arrival)
        return reader

    def locate(self, backing_topic: str, instant_ms: int | None) -> Position:
        """Return the position before the first stored message that was published at or after the instant `instant_ms`
        (milliseconds since the Unix epoch). A reader that `open_reader_at` opens after this position begins with that
        message.

        If no message is that late, or `instant_ms` is None, return the position of the last message. (0, -1) is the
        position before the first message of a log. Raises SegmentNotFound, and the errors of the class.
        """
        return self._row(_LOCATE, backing_topic, instant_ms)

    def open_reader_at(
        self, backing_topic: str, after: Position | None, *, on_arrival: Callable[[], None]
    ) -> EmbeddedPositionReader:
        """Return a reader of the messages that follow the position `after`; None: from the first message that the log
        ever had. The reader stores nothing in the server. The first reader of the client starts the thread that
        listens for notifications. This thread calls `on_arrival` when the log may have messages to read.

        Raises SegmentNotFound; DataGone if the first message to read was trimmed; LogShortened if the log ends before
        the position, or has a message of a later timeline up to the position; and the errors of the class. A
        LogShortened is also logged and counted, and its `resume` is the position to continue after. A position
        without a timeline was stored before logs had timelines. The timelines of such a position are not compared,
        and DataGone is raised instead of LogShortened if the log ends before the position.
        """
        self._listen()
        timeline, offset = (0, -1) if after is None else timeline_and_offset(after)
        log_id, first_offset, end, start, before = self._row(_OPEN_AT, backing_topic, offset, timeline)
        place = Place(start, before)
        if place.offset > end:
            raise beyond_end(backing_topic, offset, end)
        if place.offset <= offset:
            raise shortened(backing_topic, None, offset + 1, end, place.offset, resume=place.last)
        if place.offset < first_offset:
            raise trimmed(backing_topic, place.offset, first_offset)
        reader = EmbeddedPositionReader(
            self._calls,
            backing_topic=backing_topic,
            log_id=log_id,
            place=place,
            on_close=lambda: self._forget(reader),
        )
        self._watch(reader, log_id, on_arrival)
        return reader

    def open_queue_reader(
        self, backing_topic: str, subscription: str, *, owner: str, on_arrival: Callable[[], None]
    ) -> EmbeddedQueueReader:
        """Return a reader that shares the messages of the subscription with the subscription's other queue readers.
        The first reader of the client starts the thread that listens for notifications. This thread calls
        `on_arrival` when the log may have messages to read. Another thread keeps the queue reader alive until
        `close`.

        Readers that read the subscription in order lose the cursor; LostRace is not raised. If several such readers
        had divided the cursor, all messages from the lowest position of a part on are delivered again, even if they
        were acknowledged.

        Raises SegmentNotFound; SubscriptionNotFound; InvalidInput for an owner's name that is empty, too long or
        cannot be stored, and for a `queue_life_seconds` of the client outside 0 to 3600; DataPlaneUnavailable if this
        login has 10,000 readers of the subscription on the log; and the errors of the class.
        """
        self._listen()
        mark, began_at = uuid.uuid4().hex, boot_seconds()
        names = (backing_topic, subscription, mark, checked("owner", owner))
        parameters = (*names, self._queue_life_seconds)
        ((outcome, log_id),) = self._calls.rows(
            f"share {backing_topic} as {owner!r}", _OPEN_QUEUE, parameters
        )
        if outcome != "opened":
            raise _refusal(backing_topic, subscription, outcome, None)

        def forget() -> None:
            self._keeper.remove(mark)
            self._forget(reader)

        reader = EmbeddedQueueReader(
            self._calls,
            backing_topic=backing_topic,
            subscription=subscription,
            log_id=log_id,
            mark=mark,
            life_seconds=self._queue_life_seconds,
            contact_at=began_at,
            on_close=forget,
        )
        self._watch(reader, log_id, on_arrival)
        self._keeper.add(reader)
        return reader

    def close(self) -> None:
        """Close all open readers and the connections, end the threads that listen and that keep queue readers alive,
        and wait for these threads. `on_arrival` runs in the listening thread, so `on_arrival` must not call this
        method. The client must not be used afterwards.
        """
        self._keeper.close()
        for reader in list(self._callbacks):
            reader.close()
        if self._listener is not None:
            self._listener.close()
        self._calls.close()

    def _row(self, statement: str, backing_topic: str, *values: int | None) -> tuple[int, ...]:
        """Execute a statement about the log, and return the first row of the result. The name of the log is the
        statement's first parameter, and `values` are the others. Raises SegmentNotFound if the result has no row, and
        the errors of the class.
        """
        rows: list[tuple[int, ...]] = self._calls.rows(
            f"check {backing_topic}", statement, (backing_topic, *values)
        )
        if not rows:
            raise no_log(backing_topic)
        return rows[0]

    def _watch(self, reader: _Reader, log_id: int, on_arrival: Callable[[], None]) -> None:
        """Call `on_arrival`, in the listening thread, at each notification of the reader's log `log_id` and after
        each connection of the listener, until `_forget`.
        """
        with self._lock:
            self._callbacks[reader] = (log_id, on_arrival)

    def _forget(self, reader: _Reader) -> None:
        """Remove the reader from the readers that are notified. Does nothing if there is no such reader."""
        with self._lock:
            self._callbacks.pop(reader, None)

    def _listen(self) -> None:
        """Start the thread that listens for notifications, if it is not started."""
        with self._lock:
            if self._listener is None:
                self._listener = PostgresListener(
                    self._url,
                    [ARRIVALS],
                    on_notification=self._call_back,
                    on_gap=lambda: self._call_back(None),
                )
                self._listener.start()

    def _call_back(self, log_id: int | None) -> None:
        """Call `on_arrival` of each open reader of the log with this id; None: of all open readers. An exception of a
        callback is raised, and the callbacks after it are not called.
        """
        with self._lock:
            callbacks = [
                callback
                for of_log, callback in self._callbacks.values()
                if log_id is None or of_log == log_id
            ]
        for callback in callbacks:
            callback()

    def _notify(self, log_id: int) -> None:
        """Notify the readers of the log. Errors are ignored, because the batch is stored, and readers also
        poll periodically.
        """
        with suppress(CleaveError):
            self._calls.rows("notify readers", "SELECT pg_notify(%s, %s)", (ARRIVALS, str(log_id)))


def _array(values: Iterable[bytes | None]) -> str:
    """Return a bytea[] literal of the values, with NULL for None. The list adaptation of psycopg2 makes a
    parse node of each value, which is three times as slow.
    """
    return "{" + ",".join(["NULL" if v is None else f'"\\\\x{v.hex()}"' for v in values]) + "}"


def _bucket_hashes(messages: Sequence[OutgoingMessage], bucket: HashRange) -> str:
    """Return an integer[] literal of PostgreSQL with the bucket hash of each message (`_bucket_hash`), in the order
    of the messages. There must be at least one message. Raises InvalidInput if a hash is outside the bucket; the
    error names the first such message by its index.
    """
    hashes = [_bucket_hash(message) for message in messages]
    if not (bucket.start <= min(hashes) and max(hashes) <= bucket.end):
        index, outside = next((index, h) for index, h in enumerate(hashes) if not bucket.contains(h))
        raise InvalidInput(
            f"message {index} of the batch has bucket hash {hexadecimal(outside)}, outside bucket {bucket}; "
            "send each bucket's messages in batches of their own"
        )
    return f"{{{','.join(map(str, hashes))}}}"


def _bucket_hash(message: OutgoingMessage) -> int:
    """Return the bucket hash that the message contains; if it contains none, the hash of its key, 0 without a
    key.
    """
    if message.bucket_hash is not None:
        return message.bucket_hash
    return 0 if message.key is None else key_hash(message.key).bucket_hash


def _refusal(backing_topic: str, subscription: str, outcome: str, holder: str | None) -> CleaveError:
    """Return, without raising it, the error for the `outcome` of a request to open a reader: SegmentNotFound for
    `missing`, SubscriptionNotFound for `unsubscribed`, FencedOut for `stale`, LostRace for any other outcome.
    `holder` is the owner that has the cursor, for the message; None if the owner is unknown.
    """
    if outcome == "missing":
        return no_log(backing_topic)
    if outcome == "unsubscribed":
        return no_cursor(backing_topic, subscription)
    if outcome == "stale":
        return FencedOut(
            f"{backing_topic}: {holder or 'another process'} took a part of {subscription!r} under a newer assignment; this process is the "
            "stale one and must follow its leader"
        )
    return LostRace(
        f"{backing_topic}: {holder!r} still reads for {subscription!r}; try again after it has released the cursor",
        delay_seconds=0.2,
    )
