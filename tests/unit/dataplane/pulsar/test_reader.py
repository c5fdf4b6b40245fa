"""A reader's dealings with the library's listener, which runs in a thread of its own. The rest is seen on real brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pulsar

from controller.dataplane.pulsar.reader import PREFETCH_MESSAGES, PulsarReader


class _Listener:
    """A consumer of the library, as far as its listener goes."""

    def __init__(self, while_pausing: Callable[[], None]) -> None:
        self.listens, self._while_pausing = True, while_pausing

    def is_connected(self) -> bool:
        return True

    def pause_message_listener(self) -> None:
        self._while_pausing()
        self.listens = False

    def resume_message_listener(self) -> None:
        self.listens = True


def _message(entry: int) -> pulsar.Message:
    message_id = SimpleNamespace(ledger_id=lambda: 1, entry_id=lambda: entry, batch_index=lambda: -1)
    return cast(
        pulsar.Message,
        SimpleNamespace(
            message_id=lambda: message_id,
            partition_key=lambda: "k",
            properties=dict,
            publish_timestamp=lambda: 0,
            data=lambda: b"x",
        ),
    )


def _reader() -> PulsarReader:
    nobody: Any = None  # neither cursors nor connections are asked while the connection lasts
    return PulsarReader(
        nobody,
        nobody,
        backing_topic="persistent://t/n/a",
        subscription="s",
        owner="o",
        mark="m",
        on_arrival=lambda: None,
        on_close=lambda _reader: None,
    )


def test_a_listener_that_is_paused_while_all_is_read_listens_again() -> None:
    """The library's thread says pause, and before that has come about the application has read everything."""
    reader, count = _reader(), list[int]()
    reading = threading.Thread(target=lambda: count.append(len(reader.read(2 * PREFETCH_MESSAGES))))

    def read_meanwhile() -> None:
        reading.start()
        reading.join(0.3)  # as far as it gets

    consumer = _Listener(read_meanwhile)
    reader.attach(cast(pulsar.Client, None), cast(pulsar.Consumer, consumer))
    for entry in range(PREFETCH_MESSAGES):
        reader.on_message(cast(pulsar.Consumer, consumer), _message(entry))
    reading.join()

    assert count == [PREFETCH_MESSAGES]
    assert consumer.listens
