"""Appends to topics of a Pulsar cluster, and opens readers on them.

Appends use one producer for each topic, producer name and entry bucket (`batch_sender`). Reads use exclusive
consumers (`reader`), or one Key_Shared consumer for each bucket (`bucket_reader`). Queues use Shared
consumers (`queue_reader`), and reading without a subscription uses readers at a position (`position_reader`).
If deduplication is on for the namespace (`cleave doctor --fix` turns it on), the broker stores a repeated
batch once. Otherwise a batch that is repeated after a lost response may be stored twice; only batches that
this client knows to be stored are not sent again.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import pulsar

from controller import telemetry
from controller.dataplane.log_client import OutgoingMessage, Ownership, Position
from controller.dataplane.pulsar.admin import AdminCalls, Deadline
from controller.dataplane.pulsar.batch_sender import MAX_BATCH_MESSAGES, BatchSender
from controller.dataplane.pulsar.binary import Connections
from controller.dataplane.pulsar.broker_versions import demand_readable
from controller.dataplane.pulsar.bucket_reader import BUCKET_PREFETCH_MESSAGES, BucketReader
from controller.dataplane.pulsar.bucket_slots import demand_on_ring
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.cursor_claims import (
    FOREIGN_DELAY_SECONDS,
    HELD_DELAY_SECONDS,
    Claim,
    evict_holders,
)
from controller.dataplane.pulsar.cursors import (
    OWNER,
    OWNERSHIP,
    READER,
    WHOLE_ENTRY,
    Cursors,
    Holder,
    ownership_text,
)
from controller.dataplane.pulsar.library_errors import CONSUMER_LIMIT_ADVICE, mapped
from controller.dataplane.pulsar.position_reader import PulsarPositionReader
from controller.dataplane.pulsar.queue_reader import AGAIN_MS, QUEUE_PREFETCH_MESSAGES, PulsarQueueReader
from controller.dataplane.pulsar.reader import PREFETCH_MESSAGES, PulsarReader
from controller.dataplane.pulsar.reader_stall import STALL_SECONDS
from controller.dataplane.pulsar.topic_end import TopicEnd
from controller.domain.errors import (
    CleaveError,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    InvalidInput,
    LostRace,
)
from controller.domain.hash_range import HashRange
from controller.domain.pulsar_names import full_name
from controller.forks import OneProcess

log = telemetry.get_logger(__name__)

MAX_MESSAGE_BYTES = 5 * 1024 * 1024 - 10 * 1024
"""Largest total size of key, payload and metadata. The broker's `maxMessageSize` (5 MiB by default) includes its
headers.
"""
MAX_SENDERS = 4096
"""Largest number of open producers. If there are more, the producer that was idle longest is closed."""
LOOK_SECONDS = 0.02
RELOAD_SECONDS = 60.0
"""Shortest time between two reloads of one log."""
PARALLEL_CLOSES = 32
END_SECONDS = 1.0
"""Longest wait for work in progress when the process ends."""
NOTIFY_SECONDS = 1.0
"""Interval at which every reader's owner is notified, because no message reports the termination of a
topic.
"""

_AnyReader = PulsarReader | PulsarPositionReader | PulsarQueueReader


class PulsarLogClient(OneProcess):
    """A `LogClient` on the cluster that `access` names. Connects at the first call.

    Calls raise DataPlaneUnavailable if the brokers cannot serve them at present, and DataPlaneTimeout without
    a response within `call_timeout_seconds`. If a terminated topic does not open for a reader in time, the
    client makes the broker reload the topic (`_reload`). A thread checks the connections of open readers.
    """

    _endings = frozenset({"close", "end"})

    def __init__(
        self,
        access: PulsarAccess,
        *,
        call_timeout_seconds: float = 5.0,
        prefetch_messages: int = PREFETCH_MESSAGES,
        bucket_prefetch_messages: int = BUCKET_PREFETCH_MESSAGES,
        stall_seconds: float = STALL_SECONDS,
        queue_prefetch_messages: int = QUEUE_PREFETCH_MESSAGES,
        position_prefetch_messages: int = PREFETCH_MESSAGES,
    ) -> None:
        """Create the client without connecting. Raises Unsupported if `access` has no binary address.

        `*_prefetch_messages` are the largest numbers of messages that are prefetched (1 or more): by a reader
        of a whole topic, of one bucket, of a queue, and at a position. `stall_seconds` is the time without
        messages after which an idle reader checks if the broker still delivers.
        """
        self._prefetch_messages = prefetch_messages
        self._queue_prefetch_messages = queue_prefetch_messages
        self._position_prefetch_messages = position_prefetch_messages
        self._connections = Connections(access, call_timeout_seconds=call_timeout_seconds)
        self._admin = AdminCalls(access, call_timeout_seconds=call_timeout_seconds)
        self._cursors = Cursors(self._admin)
        self._lock = threading.Lock()
        self._senders: OrderedDict[tuple[str, str, HashRange | None], BatchSender] = OrderedDict()
        self._ends: WeakValueDictionary[str, TopicEnd] = WeakValueDictionary()
        self._readers: set[_AnyReader] = set()
        self._mark, self._numbers = uuid.uuid4().hex, itertools.count(1)
        self._bucket_prefetch_messages, self._stall_seconds = bucket_prefetch_messages, stall_seconds
        self._watch: threading.Thread | None = None
        self._reload_at: dict[str, float] = {}
        self._ended = threading.Event()
        _open.add(self)

    def append(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        producer: str,
        sequence: int,
        bucket: HashRange | None = None,
    ) -> int:
        """Store a batch in order, as one entry if it fits, and return the number of messages, from its front, that
        are stored. The number is lower than that of the batch only if the topic was terminated meanwhile. For an
        empty batch, do nothing and return 0. Appends of the same producer to the same bucket wait for each other.

        `sequence` rises with each batch of the producer in this topic. A batch whose number is not above the last one
        that this client knows to be stored counts as stored, and is not sent. Any other batch that is repeated under
        its number is stored once if the namespace has deduplication; otherwise the batch may be stored twice.

        Raises InvalidInput for an empty producer name, a message outside the bucket or the ring, more than
        `MAX_BATCH_MESSAGES` messages, or a message above `MAX_MESSAGE_BYTES`; Unsupported for bucket `0000-0000`;
        SegmentTerminated if no message is stored; SegmentNotFound; and the errors of the class. After
        DataPlaneUnavailable or DataPlaneTimeout the batch may be stored: repeat the batch under its number.
        """
        if not messages:
            return 0
        sender = self._sender_for(backing_topic, messages, producer, bucket)
        return sender.append(messages, sequence, self._admin.deadline())

    def begin_append(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        producer: str,
        sequence: int,
        bucket: HashRange | None = None,
    ) -> Callable[[], int] | None:
        """Send a batch on a producer that is open, and return a function that waits for the response, with
        the result and the errors of `append`. The function must be called, in any thread; other appends of
        the producer to this bucket wait until it has ended, each at most for its time limit.

        Return None, and send nothing, if the batch is empty or known to be stored, if no producer is open and
        connected, or if another append is in progress: call `append`. Raises InvalidInput and Unsupported as
        `append` does.
        """
        if not messages:
            return None
        sender = self._sender_for(backing_topic, messages, producer, bucket)
        return sender.begin(messages, sequence, self._admin.deadline())

    def open_ahead(self, backing_topic: str, *, producer: str, bucket: HashRange | None = None) -> None:
        """Begin to open, in a background thread, the producer that the first append of `producer` to this topic and
        bucket needs. Returns without waiting. Errors of the opening are ignored; the first append then opens the
        producer again and raises the errors. If the client has more than `MAX_SENDERS` producers, the producer that
        was idle longest is closed first, and the call waits for its append in progress.
        """
        sender, deadline = self._sender(full_name(backing_topic), producer, bucket), self._admin.deadline()
        self._connections.run_aside(lambda: sender.open(deadline))

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
    ) -> PulsarReader:
        """Connect as the subscription's only consumer, or with `bucket` as the only consumer of this bucket, and
        return a reader that begins with the first unacknowledged message. The reader calls `on_arrival` from another
        thread whenever there may be news.

        A connected consumer (a holder) counts as gone, and is disconnected as `cursor_claims` describes, if its owner
        is not among `live_owners`, or is `owner` itself. Raises LostRace while a holder with another owner among
        `live_owners` is in the way, or a consumer that is not Cleave's, which is never disconnected: the message
        contains its address. LostRace is also raised if the broker keeps the connection of an owner that is gone, and
        if until the deadline other readers are faster or the broker's limit of consumers is reached. Raises
        FencedOut, and disconnects nothing, if a holder has a later `ownership`, even under the name `owner` (None:
        ownerships are not compared).

        Raises also SegmentNotFound; SubscriptionNotFound; Unsupported for a bucket of one hash if the broker
        misreports its consumers (`broker_versions`); and the errors of the class. If the topic is terminated and read
        to its end, the reader does not connect, because the library would close the connection and retry forever
        (`binary`).
        """
        deadline, was_refused = self._admin.deadline(), False
        topic = full_name(backing_topic)
        claim = Claim(topic, subscription, owner, live_owners, bucket, ownership)
        if bucket is not None and bucket.width == 1:
            demand_readable(bucket, self._cursors.version(deadline))
        while True:
            try:
                reader = self._take(claim, on_arrival, deadline)
            except DataPlaneTimeout as error:
                if was_refused:
                    raise claim.lost_error() from error
                raise
            if reader is not None:
                return reader
            was_refused = True

    def locate(self, backing_topic: str, instant_ms: int | None) -> Position:
        """Return the position (ledger, entry, `WHOLE_ENTRY`) before the first stored entry that was published at or
        after the instant `instant_ms` (milliseconds since the Unix epoch), by the producers' clocks. A reader that
        `open_reader_at` opens after this position begins with that entry. If no entry is that late, or `instant_ms`
        is None, return the position behind the last entry. Raises SegmentNotFound, and the errors of the class.
        """
        place = self._cursors.place_before(full_name(backing_topic), instant_ms, self._admin.deadline())
        return (*place, WHOLE_ENTRY)

    def open_reader_at(
        self, backing_topic: str, after: Position | None, *, on_arrival: Callable[[], None]
    ) -> PulsarPositionReader:
        """Return a reader of the messages that follow the position `after`; None: of all messages that are stored.
        The reader stores nothing at the broker, and calls `on_arrival` from another thread whenever there may be
        news.

        If the topic is terminated and no message follows `after`, the reader does not connect, because the library
        would close the connection and retry forever (`binary`).

        Raises SegmentNotFound; DataGone if the broker has, or may have, deleted messages that follow the position;
        DataPlaneUnavailable also while the broker's limit of consumers is reached; and the other errors of the class.
        LogShortened is never raised.
        """
        deadline, topic = self._admin.deadline(), full_name(backing_topic)
        reader = PulsarPositionReader(
            self._cursors,
            self._connections,
            backing_topic=topic,
            after=after,
            prefetch_messages=self._position_prefetch_messages,
            on_arrival=on_arrival,
            on_close=self._forget,
            stall_seconds=self._stall_seconds,
        )
        if not self._cursors.is_at_end(topic, after or (), deadline):
            if after is not None:
                self._cursors.demand_kept(topic, after, deadline)
            start = pulsar.MessageId.earliest if after is None else pulsar.MessageId(-1, *after)
            try:
                opened = self._opened_alone(
                    topic,
                    deadline,
                    lambda client: client.create_reader(
                        topic,
                        start,
                        receiver_queue_size=self._position_prefetch_messages,
                        **self._connections.decrypting,
                    ),
                )
            except (pulsar.ConsumerBusy, pulsar.ConsumerAssignError) as error:
                raise mapped(error, f"read {topic}") from error
            reader.attach(*opened)
        self._keep(reader)
        return reader

    def open_queue_reader(
        self, backing_topic: str, subscription: str, *, owner: str, on_arrival: Callable[[], None]
    ) -> PulsarQueueReader:
        """Connect as one of the subscription's Shared consumers, with the name `owner`, and return the reader. The
        reader calls `on_arrival` from another thread whenever there may be news. If the topic is drained, the reader
        does not connect, because the library would close the connection and retry forever (`binary`).

        Raises LostRace while a consumer reads the subscription in order, or the broker's limit of consumers is
        reached; SegmentNotFound; SubscriptionNotFound; and the errors of the class. Consumers that read in order are
        not disconnected.
        """
        deadline, topic = self._admin.deadline(), full_name(backing_topic)
        reader = PulsarQueueReader(
            self._cursors,
            self._connections,
            backing_topic=topic,
            subscription=subscription,
            mark=self._new_mark(),
            prefetch_messages=self._queue_prefetch_messages,
            on_arrival=on_arrival,
            on_close=self._forget,
            stall_seconds=self._stall_seconds,
        )
        if not self._cursors.is_drained(topic, subscription, deadline):
            try:
                opened = self._opened_alone(
                    topic,
                    deadline,
                    lambda client: client.subscribe(
                        topic,
                        subscription,
                        consumer_type=pulsar.ConsumerType.Shared,
                        consumer_name=owner,
                        properties={OWNER: owner, READER: reader.mark},
                        initial_position=pulsar.InitialPosition.Earliest,
                        receiver_queue_size=reader.prefetch_messages,
                        negative_ack_redelivery_delay_ms=AGAIN_MS,
                        batch_index_ack_enabled=True,
                        message_listener=reader.on_message,
                        **self._connections.decrypting,
                    ),
                )
            except (pulsar.ConsumerBusy, pulsar.ConsumerAssignError):
                raise self._refused_queue_error(topic, subscription, deadline) from None
            reader.attach(*opened)
        self._keep(reader)
        return reader

    def close(self) -> None:
        """Close all readers, then wait for appends in progress and close the producers, then close the connections.
        Waiting for all producers together takes at most the time limit of a call. Readers release their cursors. Must
        not be called from `on_arrival`. The client must not be used afterwards.
        """
        self._ended.set()
        with self._lock:
            readers = list(self._readers)
        with ThreadPoolExecutor(PARALLEL_CLOSES, thread_name_prefix="pulsar-close") as threads:
            for closing in [threads.submit(reader.close) for reader in readers]:
                closing.result()
        if self._watch is not None:
            self._watch.join()
        deadline = self._admin.deadline()
        for sender in self._senders.values():
            sender.close(deadline)
        self._connections.close()
        self._admin.close()
        _open.discard(self)

    def end(self) -> None:
        """End all threads of the library that would call Python, because the process is ending and the client
        was not closed. Waits for each append in progress for at most `END_SECONDS`. Readers are not closed.
        """
        self._ended.set()
        if self._watch is not None:
            self._watch.join(END_SECONDS)
        for sender in list(self._senders.values()):
            sender.end(END_SECONDS)
        self._connections.end()

    def _sender_for(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        producer: str,
        bucket: HashRange | None,
    ) -> BatchSender:
        """Return the sender of the batch for this topic, producer and bucket; create the sender if there is none.
        `messages` contains at least one message. Sends nothing.

        Raises InvalidInput for an empty producer name, more than `MAX_BATCH_MESSAGES` messages, and a message whose
        key, payload and metadata together exceed `MAX_MESSAGE_BYTES`. Without a bucket, also raises InvalidInput for
        a bucket hash outside the ring. With a bucket, the sender checks the hashes.
        """
        if not producer:
            raise InvalidInput("producer name '': give one that no other process uses")
        longest = max(
            [
                len(payload) + len(key or b"") + (0 if metadata is None else metadata.size)
                for payload, key, _, metadata in messages
            ]
        )
        if len(messages) > MAX_BATCH_MESSAGES or longest > MAX_MESSAGE_BYTES:
            raise InvalidInput(
                f"a batch of {len(messages)} messages, the longest of {longest} bytes, for {backing_topic}: append at "
                f"most {MAX_BATCH_MESSAGES} of at most {MAX_MESSAGE_BYTES} bytes at once"
            )
        if bucket is None:  # messages of a bucket are checked when they are marked
            demand_on_ring(messages)
        return self._sender(full_name(backing_topic), producer, bucket)

    def _sender(self, backing_topic: str, producer: str, bucket: HashRange | None) -> BatchSender:
        """Return the sender of this topic (a complete name), producer and bucket. If there is none, create the
        sender, which opens its producer of the library later. If there are then more than `MAX_SENDERS`, close the
        sender that was requested longest ago: wait for its append in progress, at most for the time limit of a call.
        """
        oldest = None
        key = (backing_topic, producer, bucket)
        with self._lock:
            sender = self._senders.get(key)
            if sender is None:
                end = self._ends.setdefault(backing_topic, TopicEnd(self._cursors, backing_topic))
                sender = BatchSender(self._connections, end, backing_topic, producer, bucket)
                self._senders[key] = sender
                if len(self._senders) > MAX_SENDERS:
                    oldest = self._senders.popitem(last=False)[1]
            else:
                self._senders.move_to_end(key)
        if oldest is not None:
            oldest.close(self._admin.deadline())
        return sender

    def _take(self, claim: Claim, on_arrival: Callable[[], None], deadline: Deadline) -> PulsarReader | None:
        """Disconnect the holders that are in the way of the claim, and return a reader of the claimed cursor or
        bucket. If the topic is drained, the reader does not connect. Return None if the broker refuses the consumer
        although no holder was in the way; the caller may try again.

        Raises LostRace if the broker keeps the connection of a holder that counts as gone; the other errors of
        `open_reader`; and DataPlaneTimeout at the deadline, after which a terminated topic was reloaded (`_reload`).
        """
        holder = evict_holders(self._cursors, claim, self._reader_here, deadline)
        if self._cursors.is_drained(claim.backing_topic, claim.subscription, deadline):
            reader = self._reader(claim, on_arrival)
            self._keep(reader)
            return reader
        try:
            return self._subscribe(claim, on_arrival, deadline)
        except (pulsar.ConsumerBusy, pulsar.ConsumerAssignError):
            if holder is not None:
                raise claim.still_connected_error(holder) from None
            return None
        except pulsar.PulsarException as error:
            cause = mapped(error, f"read {claim.backing_topic} for {claim.subscription!r}")
            if not isinstance(cause, DataPlaneTimeout):
                raise cause from error
            raise self._late(claim, holder, cause) from error
        except DataPlaneTimeout as error:
            raise self._late(claim, holder, error) from error

    def _subscribe(self, claim: Claim, on_arrival: Callable[[], None], deadline: Deadline) -> PulsarReader:
        """Connect as a consumer of the claimed cursor or bucket, and return the reader, which is checked
        regularly. Errors of the library, such as ConsumerBusy while another consumer is connected, are raised
        unmapped. Raises DataPlaneTimeout at the deadline, and DataPlaneUnavailable if the client was closed.
        """
        reader = self._reader(claim, on_arrival)
        client, consumer = self._connections.open_alone(
            f"read {claim.backing_topic}",
            deadline,
            lambda client: client.subscribe(
                claim.backing_topic,
                claim.subscription,
                **_kind(claim.bucket),
                consumer_name=claim.owner,
                properties=_marks(claim, reader.mark),
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=reader.prefetch_messages,
                batch_index_ack_enabled=True,
                **self._connections.decrypting,
            ),
        )
        reader.attach(client, consumer)
        self._keep(reader)
        return reader

    def _opened_alone(
        self, topic: str, deadline: Deadline, build: Callable[[pulsar.Client], Any]
    ) -> tuple[pulsar.Client, Any]:
        """Create a separate client, and return it with the object that `build` opens on it. The caller closes both.

        ConsumerBusy and ConsumerAssignError of the library are raised unmapped, and other errors of the library as
        Cleave's. If nothing has opened within the deadline, a terminated topic is reloaded (`_reload`), and
        DataPlaneTimeout is raised. If the library itself reports a time-out earlier, DataPlaneTimeout is raised
        without a reload.
        """
        try:
            return self._connections.open_alone(f"read {topic}", deadline, build)
        except (pulsar.ConsumerBusy, pulsar.ConsumerAssignError):
            raise
        except pulsar.PulsarException as error:
            raise mapped(error, f"read {topic}") from error
        except DataPlaneTimeout:
            self._reload(topic)
            raise

    def _refused_queue_error(self, topic: str, subscription: str, deadline: Deadline) -> LostRace:
        """Return, without raising it, the LostRace for a queue's consumer that the broker refused. The message names
        the cause: a consumer reads the subscription in order, or the broker allows no further consumer. The refusal
        does not show the cause, so the subscription's consumers are requested. Raises the errors of
        `Cursors.attachments`.
        """
        attached = self._cursors.attachments(topic, subscription, deadline)
        if attached.holders and not attached.is_queue:
            return LostRace(
                f"{topic}: another consumer reads {subscription!r} in order; try again after that consumer has closed",
                delay_seconds=HELD_DELAY_SECONDS,
            )
        return LostRace(
            f"{topic}: the broker allows no further consumer of {subscription!r}; {CONSUMER_LIMIT_ADVICE}",
            delay_seconds=FOREIGN_DELAY_SECONDS,
        )

    def _late(self, claim: Claim, holder: Holder | None, error: DataPlaneTimeout) -> CleaveError:
        """Return, without raising it, the error for a broker that did not respond in time to the claim's consumer.
        `holder` is the result of `evict_holders`: a holder that only the broker can disconnect, or None.

        With a holder, the broker may be checking the holder's connection, and the error is LostRace. With None, the
        error is `error` itself, and a terminated topic is reloaded (`_reload`).
        """
        if holder is not None:
            return claim.still_connected_error(holder)
        self._reload(claim.backing_topic)
        return error

    def _new_mark(self) -> str:
        """Return a mark that no other reader has. Several threads open readers at once, and a generator would
        not allow that.
        """
        return f"{self._mark}-{next(self._numbers)}"

    def _reload(self, backing_topic: str) -> None:
        """Check whether the topic is terminated, and if it is, make the broker reload it. Some terminated topics
        accept no consumer until they are reloaded. The topic's other readers are disconnected and reconnect.

        A topic is checked at most once in `RELOAD_SECONDS`. Until then further calls for the topic do nothing, even
        if the check found the topic open or failed. Errors of the check and of the reload are logged, not raised.
        """
        now = time.monotonic()
        with self._lock:
            self._reload_at = {name: at for name, at in self._reload_at.items() if now < at}
            if backing_topic in self._reload_at:
                return
            self._reload_at[backing_topic] = now + RELOAD_SECONDS
        try:
            if self._cursors.reload_if_terminated(backing_topic, self._admin.deadline()):
                log.warning("terminated log reloaded because it did not open", backing_topic=backing_topic)
        except CleaveError as error:  # the caller gets the error that the log did not open
            log.warning("cannot reload terminated log", backing_topic=backing_topic, error=str(error))

    def _reader(self, claim: Claim, on_arrival: Callable[[], None]) -> PulsarReader:
        """Return a reader for the claim without a connection: a BucketReader if the claim is for a bucket."""
        common: dict[str, Any] = {
            "backing_topic": claim.backing_topic,
            "subscription": claim.subscription,
            "owner": claim.owner,
            "mark": self._new_mark(),
            "on_arrival": on_arrival,
            "on_close": self._forget,
            "stall_seconds": self._stall_seconds,
        }
        if claim.bucket is None:
            return PulsarReader(
                self._cursors, self._connections, **common, prefetch_messages=self._prefetch_messages
            )
        return BucketReader(
            self._cursors,
            self._connections,
            **common,
            bucket=claim.bucket,
            prefetch_messages=self._bucket_prefetch_messages,
        )

    def _reader_here(self, mark: str | None) -> PulsarReader | None:
        """Return the open reader of this client that has the mark. None if there is none, as for a reader of
        another process.
        """
        with self._lock:
            in_order = (reader for reader in self._readers if isinstance(reader, PulsarReader))
            return next((reader for reader in in_order if reader.mark == mark), None)

    def _keep(self, reader: _AnyReader) -> None:
        """Add the reader to the readers that are checked regularly, and start the thread that checks them, if it is
        not started. Raises DataPlaneUnavailable, and closes the reader, if the client was closed meanwhile: `close`
        may not know the reader, which would hold messages that are never read.
        """
        with self._lock:
            self._readers.add(reader)
        if self._ended.is_set():
            reader.close()
            raise DataPlaneUnavailable("the log client was closed meanwhile; create another client")
        with self._lock:
            if self._watch is None:
                self._watch = threading.Thread(target=self._check_readers, name="pulsar-readers", daemon=True)
                self._watch.start()

    def _forget(self, reader: _AnyReader) -> None:
        """Remove a closed reader from those that are checked. Does nothing if it is not among them."""
        with self._lock:
            self._readers.discard(reader)

    def _check_readers(self) -> None:
        """Until the client is closed or ended, check the connections of all open readers every `LOOK_SECONDS`, and
        call `on_arrival` of all of them every `NOTIFY_SECONDS`. Runs in a thread of its own. Errors of a reader are
        logged, not raised.
        """
        notify_at = time.monotonic() + NOTIFY_SECONDS
        while not self._ended.wait(LOOK_SECONDS):
            with self._lock:
                readers = list(self._readers)
            notifies = time.monotonic() >= notify_at
            if notifies:
                notify_at = time.monotonic() + NOTIFY_SECONDS
            for reader in readers:
                self._check(reader, notifies=notifies)

    def _check(self, reader: _AnyReader, *, notifies: bool) -> None:
        """Check the connection of one reader; with `notifies`, also notify the reader's owner. An unexpected error of
        either is not raised, so that the other readers are checked. Such an error is logged only with `notifies`,
        because the check is frequent.
        """
        try:
            reader.check_connection()
            if notifies:
                reader.notify_owner()
        except Exception:  # the thread would end, and broken connections would not be detected
            if notifies:
                log.exception("cannot check a reader")


_open: WeakSet[PulsarLogClient] = WeakSet()


@atexit.register
def _end_all() -> None:
    """End all clients before the interpreter ends, because the library's threads must not call an ended
    interpreter.
    """
    for client in list(_open):
        client.end()


def _marks(claim: Claim, mark: str) -> dict[str, str]:
    """Return the properties of a consumer by which other readers identify its owner (`OWNER`), its `mark`
    (`READER`) and its ownership (`OWNERSHIP`; absent if the claim has none).
    """
    marks = {OWNER: claim.owner, READER: mark}
    if claim.ownership is not None:
        marks[OWNERSHIP] = ownership_text(claim.ownership)
    return marks


def _kind(bucket: HashRange | None) -> dict[str, Any]:
    """Return the arguments of `subscribe` that choose the type: Exclusive for the whole subscription (None), or
    Key_Shared with the slots of the bucket as the only sticky range.
    """
    if bucket is None:
        return {"consumer_type": pulsar.ConsumerType.Exclusive}
    policy = pulsar.ConsumerKeySharedPolicy(
        pulsar.KeySharedMode.Sticky, sticky_ranges=[(bucket.start, bucket.end)]
    )
    return {"consumer_type": pulsar.ConsumerType.KeyShared, "key_shared_policy": policy}
