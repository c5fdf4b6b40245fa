"""Contains the consumer that reads in the order of each key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from controller.client.arguments import checks_arguments
from controller.client.lag import BucketLag
from controller.client.stream_consumer import Batch, BucketStatus
from controller.client.stream_consumer import StreamConsumer as InnerConsumer
from controller.dataplane.log_client import Position
from controller.domain.errors import AlreadyStored, FencedOut, InvalidInput, StoreUnavailable
from pulsar_cleave._consumers import Consumer
from pulsar_cleave._messages import Message, origins
from pulsar_cleave._schemas import Schema

_log = logging.getLogger(__name__)


@checks_arguments
class StreamConsumer(Consumer[InnerConsumer]):
    """Reads a topic in the order of each key. Created by `Client.stream_consumer`. For one thread, which must
    keep calling `receive`.

    The entry buckets of the topic are distributed over the consumers of a subscription. A bucket is released
    to another consumer when all its delivered messages are acknowledged.
    """

    def __init__(
        self, inner: InnerConsumer, topic: str, schema: Schema | None, connect: Callable[[], Any] | None
    ) -> None:
        """Wrap the inner consumer. For `Client`."""
        super().__init__(inner, topic, schema)
        self._connect = connect

    def acknowledge(self, messages: Message | Sequence[Message]) -> bool:
        """Acknowledge the messages, and every earlier message of their buckets.

        Return False if a bucket no longer belongs to this consumer. Its unacknowledged messages are then
        delivered again, here or to another consumer. Raises DataPlaneUnavailable if the result is unknown;
        call it again. Raises InvalidInput for a message of a consumer of another kind, and after `close`.
        """
        self._demand_open()
        answers = [
            self._inner.acknowledge(batch, batch.messages[-1].position) for batch in _batches(messages)
        ]
        return all(answers)

    def negative_acknowledge(self, messages: Message | Sequence[Message]) -> None:
        """Return the messages, to be delivered again. Their buckets start again at the first unacknowledged
        message, in order.
        """
        self._demand_open()
        self._give_back(_batches(messages))

    @contextmanager
    def transaction(self, messages: Message | Sequence[Message]) -> Iterator[Any]:
        """Store results and the position of the messages in one transaction of your PostgreSQL, so that each
        message counts once.

        Yields a cursor. The end of the `with` block commits, and acknowledges the messages. If another
        consumer owns the messages by that time, or an earlier transaction has stored them, the transaction is
        rolled back without an error: in either case the results are stored once. An error in the block rolls
        back and is raised, and the messages are delivered again.

        Needs `positions` of `Client.stream_consumer`; otherwise raises InvalidInput. Raises StoreUnavailable
        if the connection cannot be made or was lost: messages whose results are not stored are delivered
        again, so continue to receive. Raises Conflict if messages of a bucket that were delivered before one of
        these are neither among these nor stored nor acknowledged, or if an earlier transaction has stored some of
        the messages of a bucket but not the last; DataPlaneUnavailable if the results are stored but the
        acknowledgement failed: continue to receive, which repeats it without delivering the messages.
        """
        self._demand_open()
        if self._connect is None:
            raise InvalidInput(
                "this consumer stores no positions; create it with positions=PositionTable(connect)"
            )
        batches = _batches(messages)
        try:
            connection = self._connect()
        except Exception as error:
            self.negative_acknowledge(messages)
            raise _unreachable(error) from error
        with closing(connection):
            is_block_over = False
            try:
                with closing(connection.cursor()) as cursor:
                    yield cursor
                    is_block_over = True
                    for batch in batches:
                        self._inner.commit(batch, connection)
                connection.commit()
            except (FencedOut, AlreadyStored) as error:
                _roll_back(connection)
                if not is_block_over:  # an error of the application
                    self._give_back(batches)
                    raise
                _log.info("%s", error)
                # AlreadyStored does not show if the other batches are stored.
                if isinstance(error, FencedOut) or len(batches) > 1:
                    self.negative_acknowledge(messages)
                    return
            except BaseException as error:
                _roll_back(connection)
                self._give_back(batches)
                if connection.closed and isinstance(error, getattr(connection, "Error", ())):
                    raise _unreachable(error) from error
                raise
        try:
            self.acknowledge(messages)
        except BaseException:  # otherwise a bucket without further messages would stay unacknowledged
            self._give_back(batches)
            raise

    def why(self) -> tuple[BucketStatus, ...]:
        """Return for each bucket of the subscription why no message of it is delivered. Raises
        StoreUnavailable if no worker responds.
        """
        return self._inner.why()

    def lag(self) -> tuple[BucketLag, ...]:
        """Return the number of unacknowledged messages of each bucket, over all consumers. Raises
        StoreUnavailable.
        """
        return self._inner.lag()

    def _give_back(self, batches: Sequence[Batch]) -> None:
        """Return the batches, to be delivered again. Does nothing for a batch whose ownership has ended; after
        `close` these are all batches.
        """
        for batch in batches:
            self._inner.give_back(batch)

    def _read(self, most: int, timeout_seconds: float) -> list[Message]:  # noqa: ARG002 - the batch has its own size
        """Return the messages of the next batch, whatever `most` is; empty if none arrives within
        `timeout_seconds`.
        """
        batch = self._inner.receive(timeout_seconds)
        if batch is None:
            return []
        before = (batch.after, *(message.position for message in batch.messages))
        return [
            Message(self.topic, batch.segment_id, stored, self._schema, batch, after)
            for stored, after in zip(batch.messages, before, strict=False)
        ]

    def _holds(self, message: Message) -> bool:
        return self._inner.has(message._origin)


def _roll_back(connection: Any) -> None:
    """Roll back. An error is ignored, because a lost connection has no transaction, and the error would hide
    why the transaction ended.
    """
    with suppress(Exception):
        connection.rollback()


def _unreachable(error: BaseException) -> StoreUnavailable:
    """Return the error for a database of the results to which the connection failed or was lost."""
    return StoreUnavailable(
        f"the database of the results is out of reach: {type(error).__name__}: {error}; continue to receive: messages whose results are not "
        "stored are delivered again"
    )


def _batches(messages: Message | Sequence[Message]) -> list[Batch]:
    """Return a batch for each ownership that the messages came from, in the order of the first message of
    each. The messages of a batch are in the order of their positions. `after` of a batch is the last position
    before them, or between them, that was delivered and is not among them. Raises InvalidInput for a message that
    no stream consumer delivered.
    """
    groups: dict[int, list[tuple[Batch, Message]]] = {}
    delivered = [messages] if isinstance(messages, Message) else messages
    for batch, message in zip(origins(messages, Batch), delivered, strict=True):
        groups.setdefault(id(batch.origin), []).append((batch, message))
    batches = []
    for group in groups.values():
        group.sort(key=lambda pair: pair[1].message_id.position)
        ordered = [message for _, message in group]
        stored = [message._stored for message in ordered]
        batches.append(replace(group[0][0], messages=stored, after=_last_before(ordered)))
    return batches


def _last_before(ordered: Sequence[Message]) -> Position | None:
    """Return the last position, before or between the messages, that was delivered and is not among them. None if
    there is none. `ordered` contains at least one message; all are of one ownership, in the order of their positions.
    """
    after = ordered[0]._after
    for earlier, message in pairwise(ordered):
        if message is not earlier and message._after != earlier.message_id.position:
            after = message._after
    return after
