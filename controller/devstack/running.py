"""A server that runs for the time of a `with` statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Running(ABC):
    """A server that `with` starts and stops."""

    @abstractmethod
    def start(self) -> None:
        """Start the server, and return when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server. Does nothing if the server does not run."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
