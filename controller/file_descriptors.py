"""Waiting for file descriptors, however many the process has open.

`select.select` refuses any number above 1,023, and so would break a worker with as many watches open, or an application with as many
sockets, the next time it connects to PostgreSQL.
"""

from __future__ import annotations

import math
import select


def readable(*descriptors: int, timeout_seconds: float) -> frozenset[int]:
    """Return the descriptors that can be read without waiting or whose other end is closed. An empty set after the timeout."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return frozenset(descriptor for descriptor, _ in poll.poll(math.ceil(timeout_seconds * 1000)))
