"""Consumers that read in the order of each key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

from controller.client.arguments import checks_arguments
from controller.client.lag import BucketLag
from controller.client.stream_consumer import Batch, BucketStatus
from controller.client.stream_consumer import StreamConsumer as InnerConsumer
from controller.domain.errors import AlreadyStored, FencedOut, InvalidInput, StoreUnavailable
from pulsar_cleave._consumers import Consumer
from pulsar_cleave._messages import Message, origins
from pulsar_cleave._schemas import Schema

_log = logging.getLogger(__name__)


@checks_arguments
class StreamConsumer(Consumer[InnerConsumer]):
    """Reads a topic in the order of each key; `Client.stream_consumer` makes it. For one thread, which goes on calling `receive`.

    The entry buckets of the topic are distributed over the consumers of a subscription. A bucket goes to another consumer when every
    message that was given out of it is acknowledged.
    """

    def __init__(
        self, inner: InnerConsumer, topic: str, schema: Schema | None, connect: Callable[[], Any] | None
    ) -> None:
        """For `Client`."""
        super().__init__(inner, topic, schema)
        self._connect = connect

    def acknowledge(self, messages: Message | Sequence[Message]) -> bool:
        """Acknowledge the messages, and every earlier message of their buckets.

        Return False if a bucket is not this consumer's any more: what was not acknowledged of it is delivered again, here or to another
        consumer.
        """
        self._demand_open()
        answers = [self._inner.acknowledge(one, one.messages[-1].position) for one in _batches(messages)]
        return all(answers)

    def negative_acknowledge(self, messages: Message | Sequence[Message]) -> None:
        """Have the messages delivered again. Their buckets begin again at the first message that is not acknowledged, in order."""
        self._demand_open()
        for one in _batches(messages):
            self._inner.give_back(one)

    @contextmanager
    def transaction(self, messages: Message | Sequence[Message]) -> Iterator[Any]:
        """Store results and the position of the messages in one transaction of your PostgreSQL, so that each message counts once.

        Gives a cursor. The end of the `with` block commits, and acknowledges the messages. If another consumer owns the messages by
        then, or an earlier transaction has stored them, the transaction is rolled back without an error: the results are stored once
        in either case. An error of the block rolls back and is raised, and the messages are delivered again.

        Needs `positions` of `Client.stream_consumer`. Raises StoreUnavailable if the connection cannot be made or was lost: messages whose
        results were not stored are delivered again; go on. Raises Conflict if earlier messages of a bucket are neither stored nor
        acknowledged; DataPlaneUnavailable if the results are stored and the acknowledgement failed.
        """
        self._demand_open()
        if self._connect is None:
            raise InvalidInput(
                "this consumer keeps no positions; make it with positions=PositionTable(connect)"
            )
        batches = _batches(messages)
        try:
            connection = self._connect()
        except Exception as error:
            self.negative_acknowledge(messages)
            raise _away(error) from error
        with closing(connection):
            try:
                with closing(connection.cursor()) as cursor:
                    yield cursor
                    for one in batches:
                        self._inner.commit(one, connection)
                connection.commit()
            except (FencedOut, AlreadyStored) as error:
                _roll_back(connection)
                _log.info("%s", error)
                # AlreadyStored says nothing of the other batches.
                if isinstance(error, FencedOut) or len(batches) > 1:
                    self.negative_acknowledge(messages)
                    return
            except BaseException as error:
                _roll_back(connection)
                self.negative_acknowledge(messages)
                if connection.closed and isinstance(error, getattr(connection, "Error", ())):
                    raise _away(error) from error
                raise
        self.acknowledge(messages)

    def why(self) -> tuple[BucketStatus, ...]:
        """Return for each bucket of the subscription why no message of it comes. Raises StoreUnavailable if no worker answers."""
        return self._inner.why()

    def lag(self) -> tuple[BucketLag, ...]:
        """Return the number of messages that are not acknowledged, of this consumer's buckets and the others. Raises StoreUnavailable."""
        return self._inner.lag()

    def _read(self, most: int, timeout_seconds: float) -> list[Message]:  # noqa: ARG002 - a batch of its own size
        batch = self._inner.receive(timeout_seconds)
        if batch is None:
            return []
        before = (batch.after, *(one.position for one in batch.messages))
        return [
            Message(self.topic, batch.segment_id, one, self._schema, batch, after)
            for one, after in zip(batch.messages, before, strict=False)
        ]

    def _holds(self, message: Message) -> bool:
        return self._inner.has(message._origin)


def _roll_back(connection: Any) -> None:
    """Roll back. A connection that is lost has no transaction; its error would hide why the transaction ended."""
    with suppress(Exception):
        connection.rollback()


def _away(error: BaseException) -> StoreUnavailable:
    return StoreUnavailable(
        f"the database of the results is out of reach: {type(error).__name__}: {error}; go on: messages whose results are not "
        "stored are delivered again"
    )


def _batches(messages: Message | Sequence[Message]) -> list[Batch]:
    """Return the messages by the ownership that they came from, each as a batch in order."""
    found: dict[int, list[tuple[Batch, Message]]] = {}
    given = [messages] if isinstance(messages, Message) else messages
    for batch, message in zip(origins(messages, Batch), given, strict=True):
        found.setdefault(id(batch.origin), []).append((batch, message))
    batches = []
    for ones in found.values():
        ones.sort(key=lambda one: one[1].message_id.position)
        batch, first = ones[0]
        batches.append(replace(batch, messages=[one._stored for _, one in ones], after=first._after))
    return batches
