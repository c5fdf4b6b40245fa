"""Closing many readers in the time of one: each may wait for its data plane to the end of a call."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

PARALLEL_CLOSES = 32


class Closable(Protocol):
    """Whose `close` raises nothing."""

    def close(self) -> None: ...


def close_side_by_side(some: Sequence[Closable]) -> None:
    """Return when all are closed."""
    if len(some) <= 1:
        for one in some:
            one.close()
        return
    with ThreadPoolExecutor(min(len(some), PARALLEL_CLOSES), thread_name_prefix="cleave-close") as threads:
        for closing in [threads.submit(one.close) for one in some]:
            closing.result()
