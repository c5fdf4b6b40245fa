"""A log reader without a log: each read returns the next message of a script, or raises the next error."""

from __future__ import annotations

from collections.abc import Sequence

from controller.dataplane.log_client import LogMessage, Position


class IdleReader:
    """A `LogReader` whose log has no message."""

    def read(self, limit: int) -> Sequence[LogMessage]:
        """As `LogReader.read`."""
        return ()

    def may_wait(self) -> bool:
        """As `LogReader.may_wait`."""
        return False

    def acknowledge(self, position: Position) -> None:
        """As `LogReader.acknowledge`."""

    def is_drained(self) -> bool:
        """As `LogReader.is_drained`."""
        return False

    def close(self) -> None:
        """As `LogReader.close`."""


class ScriptedReader(IdleReader):
    """In place of a `LogReader`. The script has payloads, messages and errors; behind its end no message arrives."""

    def __init__(self, *script: bytes | LogMessage | Exception) -> None:
        self._script = list(script)
        self._next = 0
        self.acknowledged: list[Position] = []

    def read(self, limit: int) -> Sequence[LogMessage]:
        """As `LogReader.read`."""
        if not self._script:
            return []
        step = self._script.pop(0)
        if isinstance(step, Exception):
            raise step
        self._next += 1
        return [step if isinstance(step, LogMessage) else LogMessage((self._next,), 0, None, step)]

    def acknowledge(self, position: Position) -> None:
        """As `LogReader.acknowledge`."""
        self.acknowledged.append(position)
