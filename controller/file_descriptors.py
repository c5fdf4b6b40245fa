"""Waiting for file descriptors, however many the process has open.

`select.select` refuses any number above 1,023, and so would break a worker with as many watches open, or an application with as many
sockets, the next time it connects to PostgreSQL.
"""

from __future__ import annotations

import math
import select


def readable(*descriptors: int, timeout_seconds: float) -> frozenset[int]:
    """Wait until at least one descriptor is ready, and return all descriptors that are ready: they can be read without
    waiting, their other end is closed, or they are not open. Return an empty set after `timeout_seconds`, which must be
    finite and not negative.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return frozenset(descriptor for descriptor, _ in poll.poll(math.ceil(timeout_seconds * 1000)))
