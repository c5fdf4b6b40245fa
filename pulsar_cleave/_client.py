"""Contains the client of an application, which creates producers and consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from controller.client.arguments import checks_arguments
from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointConsumer as InnerCheckpointConsumer
from controller.client.checkpoint_consumer import Start
from controller.client.checkpoint_group import CheckpointGroupConsumer, KeptValues
from controller.client.closing import ClosesOnExit
from controller.client.dead_letters import reading_dead_letters
from controller.client.exactly_once_table import PositionTable
from controller.client.http_source import HttpSource
from controller.client.keyed_work import KeyedWork as InnerKeyedWork
from controller.client.producer import Producer as InnerProducer
from controller.client.queue_consumer import QueueConsumer as InnerQueueConsumer
from controller.client.retry import retry_for
from controller.client.servers import Servers, path_part, topic_path
from controller.client.stream_consumer import StreamConsumer as InnerStreamConsumer
from controller.client.topic_watch import Change, TopicWatch
from controller.dataplane.pulsar.cluster_access import PulsarAuth
from controller.domain.errors import InvalidInput
from controller.domain.names import demand_topic, topic_name
from pulsar_cleave._asynchronous import (
    AsyncCheckpointConsumer,
    AsyncProducer,
    AsyncQueueConsumer,
    AsyncStreamConsumer,
)
from pulsar_cleave._checkpoints import CheckpointConsumer
from pulsar_cleave._logs import EmbeddedAuth, Logs
from pulsar_cleave._messages import Message
from pulsar_cleave._producer import Producer
from pulsar_cleave._queues import QueueConsumer
from pulsar_cleave._schemas import Schema
from pulsar_cleave._streams import StreamConsumer
from pulsar_cleave._work import DeadLetters, Handler, KeyedWork

BATCH_DELAY_SECONDS = 0.01
Inner = TypeVar("Inner")


@checks_arguments
class Client(ClosesOnExit):
    """Creates producers and consumers. Safe to share between threads, and with forked processes, each of
    which has its own connections.

    Objects that the client creates belong to the process that creates them. Close them before the client. A
    topic is named as `topic://tenant/namespace/name`, `persistent://tenant/namespace/name`,
    `tenant/namespace/name`, or `name` in `public/default`.

    Every method that creates an object raises InvalidInput for a wrong argument, TopicNotFound,
    AccessForbidden if the token does not name the topic, AccessDenied if the workers refuse the token,
    StoreUnavailable if no worker responds, and Unsupported if this client has no credentials for the data
    plane of the topic.
    """

    def __init__(
        self,
        workers: str | Sequence[str],
        token: str | Callable[[], str],
        *,
        pulsar: PulsarAuth | None = None,
        embedded: EmbeddedAuth | None = None,
        proxy: str | None = None,
        call_timeout_seconds: float = 5.0,
    ) -> None:
        """Use the workers at these addresses, such as `http://w1:8470,http://w2:8470`. A worker that does not
        respond is skipped.

        `token` is the token that `cleave token` prints, or a function that returns it and is called for each
        request. `pulsar` and `embedded` are the application's credentials for the data planes; a cluster
        without authentication needs none. Requests to workers go through `proxy`, such as
        `http://proxy:3128`, or directly if it is None. `call_timeout_seconds` limits each call to a data
        plane, and each step of a request to one worker, such as connecting and waiting for data. Connects at
        the first call. Raises InvalidInput without an address, and for an invalid address, token or proxy.
        """
        urls = workers.split(",") if isinstance(workers, str) else workers
        self._servers = Servers(
            [url.strip() for url in urls if url.strip()],
            token,
            call_timeout_seconds=call_timeout_seconds,
            proxy=proxy,
        )
        self._logs = Logs(self._servers, pulsar, embedded, call_timeout_seconds)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._logs.close()
        self._servers.close()

    def producer(
        self,
        topic: str,
        *,
        name: str = "producer",
        schema: Schema | None = None,
        batch_messages: int = 500,
        batch_bytes: int = 512 * 1024,
        batch_delay_seconds: float | None = BATCH_DELAY_SECONDS,
        max_pending_messages: int = 20_000,
        send_timeout_seconds: float = 30.0,
        key_counts_seconds: float | None = None,
    ) -> Producer:
        """Return a producer of the topic.

        `name` is the beginning of the producer's id; several producers may have the same name. A batch is
        sent when it contains `batch_messages` or `batch_bytes`, or when its first message has waited for
        `batch_delay_seconds`; if that is None, when it is full or at `flush`. `Producer.send` blocks while
        `max_pending_messages` are not stored, and then smaller batches are sent too. `send_timeout_seconds`
        bounds how long a batch is retried before an error is raised, and how long this call waits for a
        worker. With `key_counts_seconds` the producer counts the hashes of its keys, and reports the counts
        this often, so that segments are split where the load is.
        """
        topic = _full(topic)
        make = partial(
            InnerProducer,
            name=name,
            batch_messages=batch_messages,
            batch_bytes=batch_bytes,
            batch_delay_seconds=batch_delay_seconds,
            max_pending_messages=max_pending_messages,
            send_timeout_seconds=send_timeout_seconds,
            key_counts_seconds=key_counts_seconds,
        )
        source = HttpSource(self._servers)
        inner = retry_for(lambda: make(source, self._logs.of(topic), topic), seconds=send_timeout_seconds)
        return Producer(inner, schema)

    def stream_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        name: str,
        schema: Schema | None = None,
        positions: PositionTable | None = None,
        batch_messages: int = 500,
        patience_seconds: float = 30.0,
    ) -> StreamConsumer:
        """Return a consumer that reads in the order of each key. The subscription must exist and be of kind
        stream.

        `name` belongs to this consumer alone: a second consumer with the same name replaces the first, whose
        `receive` then raises FencedOut. With `positions`, `StreamConsumer.transaction` stores results and
        positions together. `batch_messages` is the number of messages that are read at a time.
        `patience_seconds` bounds how long a call is retried while the data plane is out of reach, and this
        call while no worker leads the topic. Raises SubscriptionNotFound; Conflict if the subscription is of
        another kind.
        """
        topic = _full(topic)
        options: dict[str, Any] = {"batch_messages": batch_messages, "patience_seconds": patience_seconds}
        inner = self._made(InnerStreamConsumer, topic, subscription, name, positions=positions, **options)
        return StreamConsumer(inner, topic, schema, None if positions is None else positions.connect)

    def queue_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        name: str,
        schema: Schema | None = None,
        queue_messages: int = 100,
        patience_seconds: float = 30.0,
    ) -> QueueConsumer:
        """Return a consumer that shares messages with others in no order. The subscription must exist and be
        of kind queue.

        `name` is shown to operators; several consumers may have the same name. `queue_messages` is the
        largest number of buffered messages of each segment. `patience_seconds` bounds how long a call is
        retried while the data plane is out of reach, and how long this call waits for a worker. Raises
        SubscriptionNotFound; Conflict if the subscription is of another kind.
        """
        topic = _full(topic)
        options: dict[str, Any] = {"queue_messages": queue_messages, "patience_seconds": patience_seconds}
        inner = self._made(InnerQueueConsumer, topic, subscription, name, **options)
        return QueueConsumer(inner, topic, schema)

    def checkpoint_consumer(
        self,
        topic: str,
        start: Checkpoint | bytes | Start | datetime | None = None,
        *,
        group: str | None = None,
        name: str | None = None,
        kept_values: KeptValues | None = None,
        on_wanted: Callable[[], None] | None = None,
        schema: Schema | None = None,
        batch_messages: int = 500,
        patience_seconds: float = 30.0,
    ) -> CheckpointConsumer:
        """Return a consumer whose position the application stores, alone or as a member of a group.

        `start` is a checkpoint, `Start.EARLIEST` (the default), `Start.LATEST`, or a time with its time zone.
        A member of a group also needs `group`, the name of a subscription of kind checkpoint; `name`, which
        must be unique in the group; and `kept_values`, a function that returns the newest stored checkpoint
        of each member, including former members. In a group `start` is a time or None. `on_wanted` is called,
        in the thread that calls `receive`, when other members wait for a segment whose position is not
        stored. If it raises, `receive` raises the error, and the next `receive` returns messages of other
        segments, if there are any, before the function is called again. `patience_seconds` bounds how long a
        call, including this one, is retried while a segment or the workers are out of reach. Raises DataGone if
        the next messages were deleted; Conflict if the subscription is of another kind, or for a checkpoint of
        another topic or of a later epoch than the topic's; InvalidInput for a member without all three, or
        with another start.
        """
        topic = _full(topic)
        options: dict[str, Any] = {"batch_messages": batch_messages, "patience_seconds": patience_seconds}
        if group is None and name is None and kept_values is None and on_wanted is None:
            first = Start.EARLIEST if start is None else start
            alone = self._made(InnerCheckpointConsumer, topic, first, **options)
            return CheckpointConsumer(alone, topic, schema)
        if group is None or name is None or kept_values is None:
            raise InvalidInput(
                "a member of a group needs group, name and kept_values; give all three, or none"
            )
        if start is not None and not isinstance(start, datetime):
            raise InvalidInput(
                "a member of a group starts at its stored values; give a time as start, or None"
            )
        options |= {"start": start, "on_wanted": on_wanted or (lambda: None)}
        member = self._made(CheckpointGroupConsumer, topic, group, name, kept_values, **options)
        return CheckpointConsumer(member, topic, schema)

    def keyed_work(
        self,
        topic: str,
        subscription: str,
        handle: Callable[[Message], Any],
        *,
        name: str,
        schema: Schema | None = None,
        threads: int = 8,
        held_limit: int = 1000,
        first_retry_seconds: float = 0.1,
        longest_retry_seconds: float = 30.0,
        max_deliveries: int = 10,
        dead_letters: bool = False,
        batch_messages: int = 500,
        patience_seconds: float = 30.0,
    ) -> KeyedWork:
        """Return an object that calls `handle` for each message, on `threads` threads, each key in order. The
        subscription must be of kind stream.

        `handle` must have processed the message when it returns. An `async def` is refused with InvalidInput,
        and a handler that returns an awaitable object has failed.

        A message whose handler raises is processed again after half to all of `first_retry_seconds`; the
        delay doubles up to `longest_retry_seconds`. With `dead_letters` a message that failed or killed its
        process `max_deliveries` times is stored in the dead-letter log of the subscription, and its key
        continues. Without it, the message is retried without limit, but a message that killed
        `max_deliveries` processes is not begun again, and its key waits. At most `held_limit` messages of a
        bucket, and those of one more batch, are unsettled; use the same value in all consumers of the
        subscription. Other arguments and errors are those of `stream_consumer`.
        """
        topic = _full(topic)
        handler = Handler(handle, topic, schema)
        options: dict[str, Any] = {"batch_messages": batch_messages, "patience_seconds": patience_seconds}
        consumer = self._made(InnerStreamConsumer, topic, subscription, name, **options)
        try:
            work = InnerKeyedWork(
                consumer,
                handler,
                threads=threads,
                held_limit=held_limit,
                first_retry_seconds=first_retry_seconds,
                longest_retry_seconds=longest_retry_seconds,
                max_deliveries=max_deliveries,
                dead_letters=self._logs.of(topic) if dead_letters else None,
                observer=handler,
            )
        except BaseException:
            consumer.close()
            raise
        return KeyedWork(consumer, work)

    @contextmanager
    def dead_letters(
        self, topic: str, subscription: str, *, schema: Schema | None = None
    ) -> Iterator[DeadLetters]:
        """Read the dead letters of a subscription, in a `with` block. Another reader of them is disconnected.

        Raises NotFound if the subscription has no dead letters.
        """
        topic = _full(topic)
        path = f"{topic_path(topic)}/subscriptions/{path_part(subscription)}/dead-letter-log"
        log = self._servers.ask("GET", path)["backing_topic"]
        with reading_dead_letters(self._logs.of(topic), log) as reader:
            yield DeadLetters(reader, topic, schema)

    def watch_topics(
        self,
        namespace: str,
        *,
        properties: Mapping[str, str] | None = None,
        on_change: Change | None = None,
    ) -> TopicWatch:
        """Follow the topics of a namespace, `tenant/namespace`, that have all these properties and that the
        token may see.

        `on_change` is called, in a thread of the watch, with the removed and the added topics. Its first call
        adds the topics that exist already, unless there are none. It must not block. After an error of
        `on_change`, which is logged, the change is reported again. `TopicWatch.topics` is complete when this
        method returns.
        """
        notify = on_change or (lambda _removed, _added: None)
        return TopicWatch(self._servers, namespace, properties=properties, on_change=notify)

    def async_producer(self, topic: str, **options: Any) -> AsyncProducer:
        """Return a producer for asyncio, for use in `async with`. Arguments are those of `producer`."""
        return AsyncProducer(lambda: self.producer(topic, **options))

    def async_stream_consumer(self, topic: str, subscription: str, **options: Any) -> AsyncStreamConsumer:
        """Return a stream consumer for asyncio, for use in `async with`. Arguments are those of `stream_consumer`."""
        return AsyncStreamConsumer(lambda: self.stream_consumer(topic, subscription, **options))

    def async_queue_consumer(self, topic: str, subscription: str, **options: Any) -> AsyncQueueConsumer:
        """Return a queue consumer for asyncio, for use in `async with`. Arguments are those of `queue_consumer`."""
        return AsyncQueueConsumer(lambda: self.queue_consumer(topic, subscription, **options))

    def async_checkpoint_consumer(
        self, topic: str, *arguments: Any, **options: Any
    ) -> AsyncCheckpointConsumer:
        """Return a checkpoint consumer for asyncio, for use in `async with`. Arguments are those of `checkpoint_consumer`."""
        return AsyncCheckpointConsumer(lambda: self.checkpoint_consumer(topic, *arguments, **options))

    def _made(
        self,
        make: Callable[..., Inner],
        topic: str,
        *arguments: object,
        patience_seconds: float,
        **options: Any,
    ) -> Inner:
        """Return an inner consumer of the class `make`, and retry its creation on DataPlaneUnavailable and
        StoreUnavailable for `patience_seconds`, which is also the patience of the consumer. `topic` is a full
        name, and `arguments` and `options` are further arguments of the inner consumer.
        """
        options |= {"patience_seconds": patience_seconds}
        return retry_for(
            lambda: make(self._servers, self._logs.of(topic), topic, *arguments, **options),
            seconds=patience_seconds,
        )


def _full(topic: str) -> str:
    """Return the full name `topic://tenant/namespace/name`. Raises InvalidInput for a text that is no topic."""
    return demand_topic(topic_name(topic))
