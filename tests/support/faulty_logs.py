"""A `LogClient` whose appends and opened readers fail on purpose; all other calls go to the wrapped client."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from controller.dataplane.log_client import (
    LogClient,
    LogMessage,
    LogReader,
    OutgoingMessage,
    Ownership,
    Position,
    PositionReader,
    QueueReader,
)
from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable, LostRace, Terminal
from controller.domain.hash_range import HashRange


class FaultyLogs:
    """Set one of the counts, and as many appends fail in that way; name a log, and no reader of it is opened."""

    def __init__(self, wrapped: LogClient) -> None:
        self._wrapped = wrapped
        self.refuse = 0
        self.lose_answers = 0
        self.store_only: int | None = None
        """Store so many messages of the next batch and say so, as a plane without atomic batches may at a fence."""
        self.appended: list[str] = []
        """Backing topics of the appends that reached the wrapped one."""
        self.out_of_reach: set[str] = set()
        self.hanging: set[str] = set()
        """Whoever opens these is kept until `goes_on`, as by a broker that takes connections and answers nothing."""
        self.deaf: set[str] = set()
        """Whoever asks a reader of these, or closes it, is kept until `goes_on`; a read may have to ask."""
        self.unreadable: set[str] = set()
        """Each read of these fails for good, as of messages that cannot be decrypted."""
        self.hung = 0
        """So many were kept."""
        self.goes_on = threading.Event()
        self.held: set[str] = set()
        """Logs whose every claim is refused, as by a broker where somebody else reads."""
        self.slow_reads = 0
        """The first so many reads of each reader give nothing yet, as a broker's may before messages have come over."""

    def append(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        producer: str,
        sequence: int,
        bucket: HashRange | None = None,
    ) -> int:
        """Append by the wrapped client, as the counts say: refuse with DataPlaneUnavailable, store only the first messages, or store all
        and raise DataPlaneTimeout.
        """
        if self.refuse:
            self.refuse -= 1
            raise DataPlaneUnavailable("injected: refused", delay_seconds=0.01)
        self.appended.append(backing_topic)
        stored = self._wrapped.append(
            backing_topic, messages[: self.store_only], producer=producer, sequence=sequence, bucket=bucket
        )
        self.store_only = None  # only now: whoever waits for it knows that they are stored
        if self.lose_answers:
            self.lose_answers -= 1
            raise DataPlaneTimeout("injected: no answer", delay_seconds=0.01)
        return stored

    def open_reader(
        self,
        backing_topic: str,
        subscription: str,
        *,
        owner: str,
        live_owners: Collection[str],
        on_arrival: Callable[[], None],
        bucket: HashRange | None = None,
        ownership: Ownership | None = None,
    ) -> LogReader:
        """Open a reader of the wrapped client, or fail."""
        self._demand_reach(backing_topic)
        if backing_topic in self.held:
            raise LostRace(f"injected: reader x has {backing_topic}", 0.01)
        reader = self._wrapped.open_reader(
            backing_topic,
            subscription,
            owner=owner,
            live_owners=live_owners,
            on_arrival=on_arrival,
            bucket=bucket,
            ownership=ownership,
        )
        return self._at_times_deaf(
            backing_topic, _SlowReader(reader, self.slow_reads) if self.slow_reads else reader
        )

    def locate(self, backing_topic: str, instant_ms: int | None) -> Position:
        """Return the position from the wrapped client, or fail."""
        self._demand_reach(backing_topic)
        return self._wrapped.locate(backing_topic, instant_ms)

    def open_reader_at(
        self, backing_topic: str, after: Position | None, *, on_arrival: Callable[[], None]
    ) -> PositionReader:
        """Open a reader of the wrapped client, or fail."""
        self._demand_reach(backing_topic)
        reader = self._wrapped.open_reader_at(backing_topic, after, on_arrival=on_arrival)
        return self._at_times_deaf(
            backing_topic, _SlowReader(reader, self.slow_reads) if self.slow_reads else reader
        )

    def open_queue_reader(
        self, backing_topic: str, subscription: str, *, owner: str, on_arrival: Callable[[], None]
    ) -> QueueReader:
        """Open a reader of the wrapped client, or fail."""
        self._demand_reach(backing_topic)
        reader = self._wrapped.open_queue_reader(
            backing_topic, subscription, owner=owner, on_arrival=on_arrival
        )
        return self._at_times_deaf(backing_topic, reader)

    def _demand_reach(self, backing_topic: str) -> None:
        if backing_topic in self.out_of_reach:
            raise DataPlaneUnavailable(f"injected: {backing_topic} is out of reach", delay_seconds=0.01)
        if backing_topic in self.hanging:
            self.hang(backing_topic)

    def hang(self, backing_topic: str) -> None:
        """Wait until `goes_on` is set, or until the log is no longer named; then raise DataPlaneTimeout. Not for the application's own
        thread.
        """
        assert threading.current_thread() is not threading.main_thread(), (
            f"{backing_topic} keeps the application"
        )
        self.hung += 1
        deadline = time.monotonic() + 60
        while not self.goes_on.wait(0.01) and (backing_topic in self.deaf or backing_topic in self.hanging):
            assert time.monotonic() < deadline, f"nobody lets {backing_topic} go on"
        raise DataPlaneTimeout(f"injected: {backing_topic} has not answered", delay_seconds=0.01)

    def _at_times_deaf(self, backing_topic: str, reader: Any) -> Any:
        return _DeafReader(self, backing_topic, reader)

    def close(self) -> None:
        """Close the wrapped client."""
        self._wrapped.close()


class _DeafReader:
    """A wrapped reader of any kind, whose calls fail or hang while its log is in `deaf`."""

    def __init__(self, logs: FaultyLogs, backing_topic: str, wrapped: Any) -> None:
        self._logs, self._backing_topic, self._wrapped = logs, backing_topic, wrapped

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped reader that needs no answer of the log."""
        return getattr(self._wrapped, name)

    def may_wait(self) -> bool:
        """Return True if a read would wait."""
        return self._backing_topic in self._logs.deaf

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Read by the wrapped reader, or fail."""
        self._answer_or_hang()
        if self._backing_topic in self._logs.unreadable:
            raise Terminal("injected: cannot be decrypted")
        messages: Sequence[LogMessage] = self._wrapped.read(limit)
        return messages

    def is_drained(self) -> bool:
        """Return the wrapped reader's result, or fail."""
        self._answer_or_hang()
        return bool(self._wrapped.is_drained())

    def is_at_end(self) -> bool:
        """Return the wrapped reader's result, or fail."""
        self._answer_or_hang()
        return bool(self._wrapped.is_at_end())

    def close(self) -> None:
        """Close the wrapped reader, after a possible hang."""
        with suppress(DataPlaneTimeout):
            self._answer_or_hang()
        self._wrapped.close()

    def _answer_or_hang(self) -> None:
        if self._backing_topic in self._logs.deaf:
            self._logs.hang(self._backing_topic)


class _SlowReader:
    """A wrapped reader of any kind whose first reads are empty."""

    def __init__(self, wrapped: Any, slow_reads: int) -> None:
        self._wrapped, self._left = wrapped, slow_reads

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped reader."""
        return getattr(self._wrapped, name)

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Return nothing for the first reads, then the messages of the wrapped reader."""
        if self._left:
            self._left -= 1
            return ()
        messages: Sequence[LogMessage] = self._wrapped.read(limit)
        return messages


class MeetingLogs(FaultyLogs):
    """Logs whose first appends of the buckets wait for each other; the number of concurrent appends of one bucket is recorded."""

    def __init__(self, wrapped: LogClient, at_once: int) -> None:
        super().__init__(wrapped)
        self._meeting = threading.Barrier(at_once)
        self._under_way: Counter[tuple[str, HashRange | None]] = Counter()
        self.met = 0
        self.most_of_one_bucket = 0

    def meet(self) -> None:
        """Wait for the first appends of the other buckets."""
        self._meeting.wait(20.0)
        self.met += 1

    def append(
        self,
        backing_topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        producer: str,
        sequence: int,
        bucket: HashRange | None = None,
    ) -> int:
        place = (backing_topic, bucket)
        is_first = place not in self._under_way
        self._under_way[place] += 1
        self.most_of_one_bucket = max(self.most_of_one_bucket, self._under_way[place])
        if is_first:
            self.meet()
        stored = super().append(backing_topic, messages, producer=producer, sequence=sequence, bucket=bucket)
        self._under_way[place] -= 1
        return stored
