"""Closing: at the end of a `with` block, and many readers in the time of one, since each may wait to the end of a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, Self

PARALLEL_CLOSES = 32


class Closable(Protocol):
    """Whose `close` raises nothing."""

    def close(self) -> None: ...


class ClosedByWith(ABC):
    """For use in a `with` block, whose end calls `close`, however it ends."""

    @abstractmethod
    def close(self) -> None:
        """What its end is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def close_side_by_side(some: Sequence[Closable]) -> None:
    """Return when all are closed."""
    if len(some) <= 1:
        for one in some:
            one.close()
        return
    with ThreadPoolExecutor(min(len(some), PARALLEL_CLOSES), thread_name_prefix="cleave-close") as threads:
        for closing in [threads.submit(one.close) for one in some]:
            closing.result()
