"""Consumers of a test, and what they are sent and receive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, Protocol, TypeVar

from controller.client.polling_consumer import PollingConsumer
from controller.client.producer import Producer
from controller.client.stream_consumer import StreamConsumer
from controller.domain.key_hash import key_hash
from tests.support.waiting import wait_until


class Closable(Protocol):
    """A consumer of any kind."""

    def close(self) -> object: ...


P = ParamSpec("P")
C = TypeVar("C", bound=Closable)
Join = Callable[..., StreamConsumer]
"""Makes a consumer with this name."""


@contextmanager
def joining(make: Callable[P, C]) -> Iterator[Callable[P, C]]:
    """Yield `make`. What it made is closed at the end."""
    joined: list[C] = []

    def join(*args: P.args, **kwargs: P.kwargs) -> C:
        joined.append(make(*args, **kwargs))
        return joined[-1]

    yield join
    for consumer in joined:
        consumer.close()


def send_numbers(producer: Producer, *numbers: int, keys: Sequence[str]) -> None:
    """Send each number with each key, and wait until all are stored."""
    for number in numbers:
        for key in keys:
            producer.send(b"%d" % number, key)
    producer.flush()


def settle(*consumers: PollingConsumer[Any], until: Callable[[], bool]) -> None:
    """Let the consumers do their part, which is to call `receive`; nothing may be delivered meanwhile."""

    def turn() -> bool:
        assert [consumer.receive(0.02) for consumer in consumers] == [None] * len(consumers)
        return until()

    wait_until(turn)


def take(*consumers: StreamConsumer, count: int) -> dict[str, list[tuple[str, int]]]:
    """Receive and acknowledge so many messages in all; for each key who got which number, in order of arrival."""
    found: dict[str, list[tuple[str, int]]] = {}
    taken = 0

    def turn() -> bool:
        nonlocal taken
        for consumer in consumers:
            batch = consumer.receive(0.02)
            if batch is None:
                continue
            for message in batch.messages:
                assert message.key is not None
                assert batch.bucket.contains(key_hash(message.key).bucket_hash)
                found.setdefault(message.key.decode(), []).append((consumer.name, int(message.payload)))
            assert consumer.acknowledge(batch)
            taken += len(batch.messages)
        return taken >= count

    wait_until(turn, message=f"{count} messages")
    assert taken == count
    return found
