"""A correct run in memory, as the histories of its processes record it: producers, owners of buckets, kills, releases, seeks.

Each action adds records, and time advances by `TICK` with every record, so that a test can insert one in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controller.client.history import Event, Record

TICK = 10
BUCKETS = 3
KEYS = 7
PRODUCERS = ("p1", "p2")
CONSUMERS = ("c1", "c2", "c3")
Named = tuple[str, str, int]
"""Producer, key, number."""


@dataclass
class _Bucket:
    """A log, and the progress of its owner."""

    name: str
    consumer: str
    attachment: int = 0
    log: list[Named] = field(default_factory=list)
    acknowledged: set[Named] = field(default_factory=set)
    position: int = 0
    """In the log, of the next to hand out."""
    waiting: list[Named] = field(default_factory=list)
    """Handed out, and not begun."""
    working: list[Named] = field(default_factory=list)
    ended: list[Named] = field(default_factory=list)
    """And not acknowledged."""

    @property
    def is_settled(self) -> bool:
        return not (self.waiting or self.working or self.ended)

    def rewind(self) -> None:
        """Go back to the first unacknowledged message; messages in hand are forgotten."""
        self.position = next(
            (at for at, message in enumerate(self.log) if message not in self.acknowledged), len(self.log)
        )
        self.waiting, self.working, self.ended = [], [], []


class OrderedRun:
    """A run: call `act` with any numbers, then `finish`; `records` are those of one process after the other."""

    def __init__(self) -> None:
        self.now = 1000 * TICK
        self.buckets = [_Bucket(str(at), CONSUMERS[at % len(CONSUMERS)]) for at in range(BUCKETS)]
        self._numbers: dict[tuple[str, str], int] = {}
        self._records: list[Record] = []
        self._acts: tuple[Callable[[_Bucket, int], None], ...] = (
            self._send, self._send, self._hand_out, self._hand_out, self._begin, self._begin, self._end,
            self._end, self._acknowledge, self._hand_over, self._kill, self._reset, self._seek,
        )  # fmt: skip

    @property
    def records(self) -> list[Record]:
        """Records of each process in the order of time, as its file has them."""
        return sorted(
            self._records, key=lambda record: (record.consumer, record.producer * (not record.consumer))
        )

    def act(self, chosen: int) -> None:
        """Perform one action; the number selects the action and its object."""
        rest, which = divmod(chosen, len(self._acts))
        rest, at = divmod(rest, BUCKETS)
        self._acts[which](self.buckets[at], rest)

    def act_all(self, chosen: Iterable[int]) -> OrderedRun:
        """Perform many actions, then `finish`."""
        for number in chosen:
            self.act(number)
        self.finish()
        return self

    def finish(self) -> None:
        """Deliver, process and acknowledge all remaining messages."""
        for bucket in self.buckets:
            while not (bucket.is_settled and bucket.position == len(bucket.log)):
                for act in (self._hand_out, self._begin, self._end, self._acknowledge):
                    act(bucket, 0)

    def _note(self, event: Event, message: Named, bucket: _Bucket | None = None) -> None:
        self.now += TICK
        record = Record(self.now, event, *message)
        if bucket is not None:
            record = record._replace(
                consumer=bucket.consumer, segment="0", bucket=bucket.name, attachment=str(bucket.attachment)
            )
        self._records.append(record)

    def _send(self, _bucket: _Bucket, rest: int) -> None:
        rest, producer_at = divmod(rest, len(PRODUCERS))
        rest, key_at = divmod(rest, KEYS)
        producer, key = PRODUCERS[producer_at], f"k{key_at}"
        number = self._numbers.get((producer, key), 0)
        self._numbers[producer, key] = number + 1
        if rest % 11 == 10:
            return  # never stored, so the number is missing for good
        self.buckets[key_at % BUCKETS].log.append((producer, key, number))
        if rest % 7 != 6:  # else its producer does not know
            self._note(Event.SENT, (producer, key, number))

    def _hand_out(self, bucket: _Bucket, _rest: int) -> None:
        while bucket.position < len(bucket.log):
            message = bucket.log[bucket.position]
            bucket.position += 1
            if message not in bucket.acknowledged:
                bucket.waiting.append(message)
                self._note(Event.DELIVERED, message, bucket)
                return

    def _begin(self, bucket: _Bucket, _rest: int) -> None:
        """Begin the first message in hand whose key is not in progress."""
        busy = {key for _, key, _ in bucket.working}
        for message in bucket.waiting:
            if message[1] not in busy:
                bucket.waiting.remove(message)
                bucket.working.append(message)
                self._note(Event.BEGUN, message, bucket)
                return

    def _end(self, bucket: _Bucket, rest: int) -> None:
        if bucket.working:
            message = bucket.working.pop(rest % len(bucket.working))
            bucket.ended.append(message)
            self._note(Event.ENDED, message, bucket)

    def _acknowledge(self, bucket: _Bucket, rest: int) -> None:
        if bucket.ended:
            message = bucket.ended.pop(rest % len(bucket.ended))
            bucket.acknowledged.add(message)
            self._note(Event.ACKNOWLEDGED, message, bucket)

    def _hand_over(self, bucket: _Bucket, rest: int) -> None:
        """Move the bucket to another consumer in good order: all messages in hand are settled first."""
        self._settle(bucket)
        self._attach(bucket, rest)

    def _settle(self, bucket: _Bucket) -> None:
        while not bucket.is_settled:
            self._begin(bucket, 0)
            self._end(bucket, 0)
            self._acknowledge(bucket, 0)

    def _kill(self, bucket: _Bucket, rest: int) -> None:
        """Kill the owner, which may have had one acknowledgement confirmed and not recorded."""
        dead = bucket.consumer
        for owned in self.buckets:
            if owned.consumer == dead:
                if owned.ended and rest % 5 == 4:
                    owned.acknowledged.add(owned.ended[0])
                self._attach(owned, rest)

    def _reset(self, bucket: _Bucket, _rest: int) -> None:
        """Break the connection: the owner gets all unacknowledged messages again."""
        while bucket.working:
            self._end(bucket, 0)
        bucket.rewind()

    def _seek(self, _bucket: _Bucket, rest: int) -> None:
        """Seek to the beginning: all messages in hand are settled, and the owners then read their buckets again."""
        self.now += TICK
        self._records.append(Record(self.now, Event.SEEKING))
        for bucket in self.buckets:
            self._settle(bucket)
            bucket.acknowledged.clear()
            self._attach(bucket, rest)
        self.now += TICK
        self._records.append(Record(self.now, Event.SOUGHT))

    def _attach(self, bucket: _Bucket, rest: int) -> None:
        others = [name for name in CONSUMERS if name != bucket.consumer]
        bucket.consumer = others[rest % len(others)]
        bucket.attachment += 1
        bucket.rewind()
