"""Duplicates and breaks in a run of standard consumers, and the deaths and joins that explain them.

A broker gives the segments of a Failover subscription to other consumers when a consumer connects or leaves. The consumer that had a
segment goes on with the messages that it has fetched, which the other consumer is sent as well. The broker's log tells when this happened.

A 4.2.4 broker waits for a second (`activeConsumerFailoverDelayTimeMillis`) before it begins with the first unacknowledged message for
another consumer. Within this second it may send the consumer messages from further ahead, on any topic and without Cleave: in 1 of 8
runs on a plain topic whose consumers came and went; in 0 of 16 without the delay.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from controller.client.history import Event, Record
from controller.client.history_check import Example, Kind, Verdict
from tests.support.stock_clients import Break

CHANGED_NS = 15 * 10**9
"""Time after a change of a segment's consumers within which a broker may send messages out of order."""
FETCHED_NS = 45 * 10**9
"""Time within which a consumer on a busy machine handles the messages that it has fetched: 100 messages of each segment that it reads,
sealed ones too, 3 ms for each message, while its client connects again and again to a broker that has just been killed. 25 s were seen.
"""
OPENING_NS = 3 * 10**9
"""Time after the opening of a gate within which a break is the gate's."""
BROKER_KEEPS_NS = 61 * 10**9
"""Time for which a broker may keep acknowledgements in memory only."""
_OPENED = re.compile(r"^(?P<at>\S+)Z \[info +\] gate opened .* segment_id=(?P<segment>\d+) ")
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

    def breaks_at_gates(self, breaks: Iterable[Break], worker_logs: Iterable[Path]) -> list[Break]:
        """Return the breaks that a broker without gates cannot have made.

        Such a broker makes breaks within a segment whose consumers have just changed. The segment's gate must have been open for some
        seconds.
        """
        changes, opened = self.by_segment(), _openings(worker_logs)
        return [one for one in breaks if not self._is_of_broker(one, changes, opened)]

    def _is_of_broker(
        self, broken: Break, changes: Mapping[str, list[int]], opened: Mapping[str, list[int]]
    ) -> bool:
        segment, at_ns = broken.message.segment, broken.message.at_ns
        if segment != broken.predecessor.segment:
            return False
        if any(at_ns - OPENING_NS <= opened_at for opened_at in opened[segment]):
            return False
        return any(at_ns - CHANGED_NS <= changed_at <= at_ns for changed_at in changes[segment])

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
        is_of_overlap = again_at - taken_at <= FETCHED_NS + stood
        return is_of_overlap and any(
            taken_at - FETCHED_NS - stood <= changed_at <= again_at for changed_at in changes[segment]
        )


def _openings(worker_logs: Iterable[Path]) -> dict[str, list[int]]:
    """Return the instants at which the gate of each segment was opened, from the logs of workers."""
    found: dict[str, list[int]] = defaultdict(list)
    ago_ns = time.monotonic_ns() - time.time_ns()
    for log in worker_logs:
        for opened in filter(None, map(_OPENED.match, log.read_text(errors="replace").splitlines())):
            told = datetime.fromisoformat(opened["at"]).replace(tzinfo=UTC)
            found[opened["segment"]].append(int(told.timestamp() * 1e9) + ago_ns)
    return found


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
