"""Duplicates in a run of standard consumers, and the deaths and joins that explain them.

A broker gives the segments of a Failover subscription to other consumers when a consumer connects or leaves. The consumer that had a
segment goes on with the messages that it has fetched, which the other consumer is sent as well. The broker's log tells when this happened.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from controller.client.history import Event, Record
from controller.client.history_check import Example, Kind, Verdict

HANDED_NS = 15 * 10**9
"""Time within which a consumer on a busy machine handles the messages that it has fetched."""
BROKER_KEEPS_NS = 61 * 10**9
"""Time for which a broker may keep acknowledgements in memory only."""
_CHANGE = re.compile(
    r"^(?P<at>\S+) .*(?:Subscribing on topic |Removing consumer Consumer\{subscription=PersistentSubscription\{topic=)"
    r"(?P<topic>\S+)-segment-[0-9a-f]{4}-[0-9a-f]{4}-(?P<segment>\d+)(?: / |, name=)(?P<subscription>[^\s}.]+)"
)


@dataclass
class ConsumerChanges:
    """Events of a run that explain duplicates. Instants are the machine's monotonic clock, in ns."""

    topic: str
    subscription: str
    broker_log: Path
    broker_kills: list[int] = field(default_factory=list)
    pauses: list[tuple[int, int]] = field(default_factory=list)

    def broker_killed(self) -> None:
        """Record that the broker has just been killed."""
        self.broker_kills.append(time.monotonic_ns())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record that a consumer is stopped for the duration of the block."""
        began = time.monotonic_ns()
        yield
        self.pauses.append((began, time.monotonic_ns()))

    def by_segment(self) -> dict[str, list[int]]:
        """Return the instants at which a consumer connected to a segment or left it, from the broker's log."""
        found: dict[str, list[int]] = defaultdict(list)
        ago_ns = time.monotonic_ns() - time.time_ns()
        name = self.topic.partition("://")[2]
        with self.broker_log.open(errors="replace") as lines:
            for change in filter(None, map(_CHANGE.match, lines)):
                is_ours = change["topic"].endswith(name) and change["subscription"] == self.subscription
                if is_ours:
                    told = datetime.fromisoformat(change["at"].replace(",", "."))
                    found[change["segment"]].append(int(told.timestamp() * 1e9) + ago_ns)
        return found

    def unexplained(self, verdict: Verdict, records: Iterable[Record]) -> list[Example]:
        """Return the duplicates of the verdict, which contains all its examples, that no death and no join explains."""
        twice = [one for one in verdict.examples if one.kind is Kind.DUPLICATED]
        taken = _acknowledgements(records, twice)
        changes = self.by_segment()
        return [one for one in twice if not self._explains(one, taken[_name(one)], changes)]

    def _explains(
        self, twice: Example, taken: Sequence[tuple[int, str]], changes: dict[str, list[int]]
    ) -> bool:
        again_at = twice.at_ns or 0
        taken_at, segment = max(one for one in taken if one[0] <= again_at)
        if segment != twice.owner.segment:
            return True  # the producer sent the message again, because its segment was sealed before the answer came
        forgotten_by = min(again_at, taken_at + BROKER_KEEPS_NS)
        if any(taken_at <= killed_at <= forgotten_by for killed_at in self.broker_kills):
            return True
        stood = sum(ended - began for began, ended in self.pauses if began <= again_at and ended >= taken_at)
        is_of_overlap = again_at - taken_at <= HANDED_NS + stood
        return is_of_overlap and any(
            taken_at - HANDED_NS - stood <= changed_at <= again_at for changed_at in changes[segment]
        )


def _name(example: Example) -> tuple[str, str, int]:
    return example.producer, example.key, example.number


def _acknowledgements(
    records: Iterable[Record], of: Iterable[Example]
) -> dict[tuple[str, str, int], list[tuple[int, str]]]:
    """Return instant and segment of each acknowledgement of the messages."""
    wanted = {_name(one) for one in of}
    found: dict[tuple[str, str, int], list[tuple[int, str]]] = defaultdict(list)
    for record in records if wanted else ():
        name = (record.producer, record.key, record.number)
        if record.event is Event.ACKNOWLEDGED and name in wanted:
            found[name].append((record.at_ns, record.segment))
    return found
