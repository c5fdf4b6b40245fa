"""Closed readers leave nothing behind, on every data plane: an application opens one whenever a segment or a bucket moves."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from controller.domain.hash_range import HashRange
from tests.support.planes import Planes, payloads
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration
ROUNDS = 24
KINDS: dict[str, Callable[[Planes, str], Any]] = {
    "of a subscription": lambda planes, log: planes.reader(log, "s"),
    "of a bucket": lambda planes, log: planes.reader(log, "s", bucket=HashRange(0, 0xFFFF)),
    "at a position": lambda planes, log: planes.reader_at(log, None),
    "of a queue": lambda planes, log: planes.queue(log, "s"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_descriptor_and_no_thread_is_left(planes: Planes, kind: str) -> None:
    """The library (pulsar-client 3.13) keeps six and one of each reader with a listener, and often of one that waits for a message."""
    log = planes.filled_log(b"1")

    def read_and_close() -> None:
        reader = KINDS[kind](planes, log)
        planes.readers.remove(reader)
        assert payloads(planes.read(reader, 1)) == [b"1"]
        reader.close()

    read_and_close()  # what all share is there from now on
    before = _open()
    for _ in range(ROUNDS):
        read_and_close()

    wait_until(lambda: _open() < before + 6, message=f"no more is open than before, {before}")


def _open() -> int:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc/self/task"))
