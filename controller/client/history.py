"""What was sent and what was delivered, and whether the two agree: nothing lost, nothing twice, each key in order.

Producers and consumers, each in its own process, append lines to a file of their own while they run; afterwards `check`
reads all of them. A killed process leaves what it had written. So the record of a sent message is written after the
data plane acknowledged it, and that of a delivered message before it is acknowledged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self


class Record(NamedTuple):
    """One message at one end. `number` counts the messages of one producer for one key, from 0 up.

    `at_ns` is the machine's monotonic clock, one for all processes, so deliveries of a key to several consumers
    can be put in order.
    """

    at_ns: int
    producer: str
    key: str
    number: int
    where: str
    """The consumer it was delivered to; empty for what was sent."""

    @property
    def identity(self) -> tuple[str, str, int]:
        """What names the message."""
        return self.producer, self.key, self.number


class HistoryFile:
    """Appends records of this process to a file. When a call returns, its record survives a kill of the process."""

    def __init__(self, path: Path, where: str = "") -> None:
        """No name or key may hold a tab or a line break."""
        self._where = where
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, messages: Iterable[tuple[str, str, int]]) -> None:
        """Producer, key and number of each message, as of now."""
        now = time.monotonic_ns()
        lines = "".join(
            f"{now}\t{producer}\t{key}\t{number}\t{self._where}\n" for producer, key, number in messages
        )
        rest = memoryview(lines.encode())
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_history(*paths: Path) -> Iterator[Record]:
    """The records of these files, file by file. A last line that a kill cut short is left out."""
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    at_ns, producer, key, number, where = line[:-1].split("\t")
                    yield Record(int(at_ns), producer, key, int(number), where)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, message by message. Only `unconfirmed` is no fault."""

    sent: int
    delivered: int
    lost: tuple[tuple[str, str, int], ...]
    """Acknowledged to the producer and never delivered."""
    duplicated: tuple[tuple[str, str, int], ...]
    """Delivered more than once. That is allowed where a consumer died, or gave up a segment with unacknowledged
    messages.
    """
    out_of_order: tuple[tuple[str, str, int], ...]
    """Delivered for the first time after a later one of the same producer and key."""
    unconfirmed: tuple[tuple[str, str, int], ...]
    """Delivered although no producer knows that it was stored: its process died before the answer came."""

    @property
    def in_order_and_complete(self) -> bool:
        """At least once, in order."""
        return not self.lost and not self.out_of_order

    @property
    def exactly_once(self) -> bool:
        """In order, complete, and nothing twice."""
        return self.in_order_and_complete and not self.duplicated

    def __str__(self) -> str:
        return (
            f"{self.sent} sent, {self.delivered} delivered: {len(self.lost)} lost, {len(self.duplicated)} duplicated, "
            f"{len(self.out_of_order)} out of order, {len(self.unconfirmed)} unconfirmed"
        )


def check(sent: Iterable[Record], delivered: Iterable[Record]) -> Verdict:
    """Compare both ends of one subscription. A redelivery counts as duplicated, never as out of order."""
    acknowledged = {record.identity for record in sent}
    seen: set[tuple[str, str, int]] = set()
    latest: dict[tuple[str, str], int] = {}
    duplicated: list[tuple[str, str, int]] = []
    out_of_order: list[tuple[str, str, int]] = []
    total = 0
    for record in sorted(delivered, key=lambda one: one.at_ns):
        total += 1
        if record.identity in seen:
            duplicated.append(record.identity)
            continue
        seen.add(record.identity)
        flow = (record.producer, record.key)
        if record.number < latest.get(flow, -1):
            out_of_order.append(record.identity)
        latest[flow] = max(record.number, latest.get(flow, -1))
    return Verdict(
        sent=len(acknowledged),
        delivered=total,
        lost=tuple(sorted(acknowledged - seen)),
        duplicated=tuple(duplicated),
        out_of_order=tuple(out_of_order),
        unconfirmed=tuple(sorted(seen - acknowledged)),
    )
