"""Producing to topics of a Pulsar cluster, and opening readers on them.

Appends go through one producer for each topic, producer name and entry bucket (`batch_sender`), reads through exclusive
consumers (`reader`), or one Key_Shared consumer for each bucket (`bucket_reader`); queues through Shared consumers
(`queue_reader`), and without a subscription through readers at a position (`position_reader`). Where deduplication is on
for the namespace (`cleave doctor --fix` turns it on), the broker stores a repeated batch once. Elsewhere a batch that is
repeated after a lost answer may be stored twice; only what this client knows to be stored is not sent again.
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
from controller.dataplane.base import OutgoingMessage, Ownership, Position
from controller.dataplane.pulsar.access import PulsarAccess
from controller.dataplane.pulsar.admin import AdminCalls, Deadline
from controller.dataplane.pulsar.batch_sender import MAX_BATCH_MESSAGES, BatchSender
from controller.dataplane.pulsar.binary import Connections, mapped
from controller.dataplane.pulsar.bucket_reader import BUCKET_PREFETCH_MESSAGES, BucketReader
from controller.dataplane.pulsar.buckets import demand_on_ring
from controller.dataplane.pulsar.claims import Claim, make_way
from controller.dataplane.pulsar.cursors import OWNER, OWNERSHIP, READER, Cursors, Holder, ownership_text
from controller.dataplane.pulsar.position_reader import WHOLE_ENTRY, PulsarPositionReader
from controller.dataplane.pulsar.queue_reader import AGAIN_MS, QUEUE_PREFETCH_MESSAGES, PulsarQueueReader
from controller.dataplane.pulsar.reader import PREFETCH_MESSAGES, PulsarReader
from controller.dataplane.pulsar.stall import STALL_SECONDS
from controller.dataplane.pulsar.topic_end import TopicEnd
from controller.dataplane.pulsar.versions import demand_readable
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
"""Key and payload; the broker's `maxMessageSize` (5 MiB by default) counts its own headers too."""
MAX_SENDERS = 4096
"""Producers kept. When there are more, the one that was idle longest is closed."""
LOOK_SECONDS = 0.02
RELOAD_SECONDS = 60.0
"""One log is loaded anew no more often than this."""
PARALLEL_CLOSES = 32
END_SECONDS = 1.0
"""What is under way when the process ends is waited for no longer."""
RING_SECONDS = 1.0
"""No message tells that a topic was terminated, so every reader is told to look this often."""


class PulsarLogClient(OneProcess):
    """A `LogClient` on the cluster that `access` names; the first call connects."""

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
        """`*_prefetch_messages`: what may wait at a reader to be handed out, of a whole topic, of one bucket, of a queue, of a reader at
        a position; 1 or more.
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
        self._readers: set[PulsarReader] = set()
        self._others: set[PulsarPositionReader | PulsarQueueReader] = set()
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
        """Store a batch in order, as one entry where it fits; see `LogClient.append` and this module's opening."""
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
        """Send a batch on a producer that is open; see `EagerLogClient.begin_append`."""
        if not messages:
            return None
        sender = self._sender_for(backing_topic, messages, producer, bucket)
        return sender.begin(messages, sequence, self._admin.deadline())

    def open_ahead(self, backing_topic: str, *, producer: str, bucket: HashRange | None = None) -> None:
        """Open the producer in another thread; see `EagerLogClient.open_ahead`."""
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
        """Take the cursor by being the subscription's one consumer, or one bucket of it by being the one with its slots;
        see `LogClient.open_reader`.

        A holder that is gone is cut off as `claims` tells. A consumer that is not Cleave's is never cut off: LostRace
        names its address. A reader on a topic that is terminated and read to its end does not connect. The broker would
        tell of the end before it tells that the consumer is subscribed, and the library would then drop the connection
        and try again for ever (see `binary`). Unsupported where the broker loses track of so narrow a
        bucket (see `versions`).
        """
        deadline = self._admin.deadline()
        topic = full_name(backing_topic)
        claim = Claim(topic, subscription, owner, live_owners, bucket, ownership)
        if bucket is not None and bucket.width == 1:
            demand_readable(bucket, self._cursors.version(deadline))
        while True:
            holder = make_way(self._cursors, claim, self._reader_here, deadline)
            if self._cursors.is_drained(topic, subscription, deadline):
                return self._kept(self._reader(claim, on_arrival))
            try:
                return self._subscribe(claim, on_arrival, deadline)
            except (pulsar.ConsumerBusy, pulsar.ConsumerAssignError):
                if holder is not None:
                    raise claim.still_connected(holder) from None
                if not deadline.left_seconds:
                    raise claim.outrun() from None
            except pulsar.PulsarException as error:
                known = mapped(error, f"read {topic} for {subscription!r}")
                if not isinstance(known, DataPlaneTimeout):
                    raise known from error
                raise self._late(claim, holder, known) from error
            except DataPlaneTimeout as error:
                raise self._late(claim, holder, error) from error

    def locate(self, backing_topic: str, instant_ms: int | None) -> Position:
        """Behind the whole entry before the first one at or after the instant, by the producers' clocks, None: behind the last;
        see `LogClient.locate`.
        """
        place = self._cursors.place_before(full_name(backing_topic), instant_ms, self._admin.deadline())
        return (*place, WHOLE_ENTRY)

    def open_reader_at(
        self, backing_topic: str, after: Position | None, *, on_arrival: Callable[[], None]
    ) -> PulsarPositionReader:
        """Read what follows upon the position; see `LogClient.open_reader_at`.

        At the end of a terminated topic it does not connect, for the reason that `open_reader` gives.
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
            reader.attach(
                *self._opened_alone(
                    topic,
                    deadline,
                    lambda client: client.create_reader(
                        topic,
                        start,
                        receiver_queue_size=self._position_prefetch_messages,
                        **self._connections.decrypting,
                    ),
                )
            )
        self._watched(reader)
        return reader

    def open_queue_reader(
        self, backing_topic: str, subscription: str, *, owner: str, on_arrival: Callable[[], None]
    ) -> PulsarQueueReader:
        """Be one of the subscription's Shared consumers; see `LogClient.open_queue_reader`."""
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
                raise LostRace(
                    f"{topic}: somebody reads {subscription!r} in order; a queue begins when that has ended",
                    delay_seconds=0.2,
                ) from None
            reader.attach(*opened)
        self._watched(reader)
        return reader

    def close(self) -> None:
        """Close the readers and give back connections."""
        self._ended.set()
        with self._lock:
            readers = [*self._readers, *self._others]
        with ThreadPoolExecutor(PARALLEL_CLOSES, thread_name_prefix="pulsar-close") as threads:
            for closing in [threads.submit(reader.close) for reader in readers]:
                closing.result()
        if self._watch is not None:
            self._watch.join()
        for sender in self._senders.values():
            sender.close()
        self._connections.close()
        self._admin.close()
        _open.discard(self)

    def end(self) -> None:
        """The process is ending and nobody has closed this: leave no thread of the library that would call Python."""
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
        """Whose batch it is. Raises InvalidInput for a batch that no broker takes."""
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
        if bucket is None:  # those of a bucket are looked at when they are marked
            demand_on_ring(messages)
        return self._sender(full_name(backing_topic), producer, bucket)

    def _sender(self, backing_topic: str, producer: str, bucket: HashRange | None) -> BatchSender:
        dropped = None
        key = (backing_topic, producer, bucket)
        with self._lock:
            sender = self._senders.get(key)
            if sender is None:
                end = self._ends.setdefault(backing_topic, TopicEnd(self._cursors, backing_topic))
                sender = BatchSender(self._connections, end, backing_topic, producer, bucket)
                self._senders[key] = sender
                if len(self._senders) > MAX_SENDERS:
                    dropped = self._senders.popitem(last=False)[1]
            else:
                self._senders.move_to_end(key)
        if dropped is not None:
            dropped.close()
        return sender

    def _subscribe(self, claim: Claim, on_arrival: Callable[[], None], deadline: Deadline) -> PulsarReader:
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
        return self._kept(reader)

    def _opened_alone(
        self, topic: str, deadline: Deadline, build: Callable[[pulsar.Client], Any]
    ) -> tuple[pulsar.Client, Any]:
        """What `build` opens on a client of its own; who is busy passes through, other errors are mapped."""
        try:
            return self._connections.open_alone(f"read {topic}", deadline, build)
        except (pulsar.ConsumerBusy, pulsar.ConsumerAssignError):
            raise
        except pulsar.PulsarException as error:
            raise mapped(error, f"read {topic}") from error
        except DataPlaneTimeout:
            self._reload(topic)
            raise

    def _late(self, claim: Claim, holder: Holder | None, error: DataPlaneTimeout) -> CleaveError:
        """What it means that the broker did not answer in time. It may be making sure that somebody is gone."""
        if holder is not None:
            return claim.still_connected(holder)
        self._reload(claim.backing_topic)
        return error

    def _new_mark(self) -> str:
        """Of one reader and no other. Readers are opened by several threads at once, which a generator would not bear."""
        return f"{self._mark}-{next(self._numbers)}"

    def _reload(self, backing_topic: str) -> None:
        """Help a terminated topic that nobody can subscribe to, at most once in `RELOAD_SECONDS`; the next try finds it
        well.
        """
        now = time.monotonic()
        with self._lock:
            self._reload_at = {name: at for name, at in self._reload_at.items() if now < at}
            if backing_topic in self._reload_at:
                return
            self._reload_at[backing_topic] = now + RELOAD_SECONDS
        try:
            if self._cursors.reload_if_terminated(backing_topic, self._admin.deadline()):
                log.warning("a closed log that did not open is loaded anew", backing_topic=backing_topic)
        except CleaveError as error:  # what the caller is told is that the log did not open
            log.warning(
                "a closed log could not be loaded anew", backing_topic=backing_topic, error=str(error)
            )

    def _reader(self, claim: Claim, on_arrival: Callable[[], None]) -> PulsarReader:
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
        with self._lock:
            return next((reader for reader in self._readers if reader.mark == mark), None)

    def _kept(self, reader: PulsarReader) -> PulsarReader:
        """Watch this reader from now on."""
        with self._lock:
            self._readers.add(reader)
        self._demand_open(reader)
        self._begin_watch()
        return reader

    def _watched(self, reader: PulsarPositionReader | PulsarQueueReader) -> None:
        """Watch this one from now on."""
        with self._lock:
            self._others.add(reader)
        self._demand_open(reader)
        self._begin_watch()

    def _demand_open(self, reader: PulsarReader | PulsarPositionReader | PulsarQueueReader) -> None:
        """What was opened while everything else was closed would hold messages that nobody takes: `close` may not know of it."""
        if self._ended.is_set():
            reader.close()
            raise DataPlaneUnavailable("these logs were closed meanwhile; open them anew")

    def _begin_watch(self) -> None:
        with self._lock:
            if self._watch is None:
                self._watch = threading.Thread(target=self._look_after, name="pulsar-readers", daemon=True)
                self._watch.start()

    def _forget(self, reader: PulsarReader | PulsarPositionReader | PulsarQueueReader) -> None:
        with self._lock:
            if isinstance(reader, PulsarReader):
                self._readers.discard(reader)
            else:
                self._others.discard(reader)

    def _look_after(self) -> None:
        """Notice broken connections, and tell readers to look now and then."""
        ring_at = time.monotonic() + RING_SECONDS
        while not self._ended.wait(LOOK_SECONDS):
            with self._lock:
                readers = [*self._readers, *self._others]
            is_time = time.monotonic() >= ring_at
            if is_time:
                ring_at = time.monotonic() + RING_SECONDS
            for reader in readers:
                self._look_at(reader, rings=is_time)

    def _look_at(
        self, reader: PulsarReader | PulsarPositionReader | PulsarQueueReader, *, rings: bool
    ) -> None:
        """An unexpected error keeps no other reader from being looked at; it is logged with the rings, not each time."""
        try:
            reader.look()
            if rings:
                reader.ring()
        except Exception:  # the thread would end, and broken connections would go unnoticed
            if rings:
                log.exception("a reader cannot be looked at")


_open: WeakSet[PulsarLogClient] = WeakSet()


@atexit.register
def _end_all() -> None:
    """Before the interpreter ends: the library's threads must not find it ended."""
    for client in list(_open):
        client.end()


def _marks(claim: Claim, mark: str) -> dict[str, str]:
    """What tells others whose consumer this is."""
    marks = {OWNER: claim.owner, READER: mark}
    if claim.ownership is not None:
        marks[OWNERSHIP] = ownership_text(claim.ownership)
    return marks


def _kind(bucket: HashRange | None) -> dict[str, Any]:
    """Arguments of `subscribe` for the whole, or for the slots of a bucket."""
    if bucket is None:
        return {"consumer_type": pulsar.ConsumerType.Exclusive}
    policy = pulsar.ConsumerKeySharedPolicy(
        pulsar.KeySharedMode.Sticky, sticky_ranges=[(bucket.start, bucket.end)]
    )
    return {"consumer_type": pulsar.ConsumerType.KeyShared, "key_shared_policy": policy}
