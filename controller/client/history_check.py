"""Judges the histories of a run: the order certificate of every message.

The findings, and what is not a fault:

- *lost*: the message was sent and never delivered. If acknowledgement is demanded, also: delivered and never
  acknowledged.
- *duplicated*: the message was delivered again after its acknowledgement. An unacknowledged message may be
  delivered again. After a seek of the subscription an acknowledged message may too: once the seek has begun,
  acknowledgements from before its end do not count.
- *overtaken*: processing of the message began before its predecessor had ended for the first time; or the
  message was delivered, for the first time or again, behind a message that should follow it. The predecessor
  is the previous message of the same producer and key. A key may go back to an earlier number and continue in
  order from there: its *rewind*.
- *gap*: within one attachment a key skipped a message that no consumer had received before.
- *two owners*: consumers, or two attachments of one consumer, processed the same key at the same time; or an
  attachment received a message of the key after another attachment had followed it.
- *unconfirmed*, which is not a fault: the message was delivered although no producer recorded that it was
  stored, because the producer's process died before the response arrived.

If a kill interrupted the processing of a message, the history does not show how long the processing lasted.
It shows that the process was alive when it wrote its last line. Processing without an end therefore counts
until the last line of its attachment, and does not overlap processing that began later. A longer overlap is
not detected.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from controller.client.history import OF_SEEKS, Event, Record

if TYPE_CHECKING:
    import pyarrow as pa

EXAMPLES = 5
_EVENTS = {event: code for code, event in enumerate(Event)}
_NO_OWNER = -1
_CODES: Mapping[int, Literal["b", "i", "q"]] = {8: "b", 32: "i", 64: "q"}
"""Type code of Python's `array` for whole numbers of a number of bits."""


class Kind(StrEnum):
    """The kind of a finding, as the module describes it."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    OVERTAKEN = "overtaken"
    GAP = "gap"
    TWO_OWNERS = "two_owners"
    UNCONFIRMED = "unconfirmed"


FAULTS = tuple(kind for kind in Kind if kind is not Kind.UNCONFIRMED)
OF_ORDER = (Kind.OVERTAKEN, Kind.GAP)


class Owner(NamedTuple):
    """The consumer that received the message, and its attachment. All fields are empty if no consumer
    received it.
    """

    consumer: str = ""
    segment: str = ""
    bucket: str = ""
    attachment: str = ""

    def __str__(self) -> str:
        return f"{self.consumer} ({self.attachment} of {self.segment}/{self.bucket})"


@dataclass(frozen=True, slots=True)
class Example:
    """A finding about one message. `at_ns` is the time at which it appeared; None if it appears only at the
    end.
    """

    kind: Kind
    producer: str
    key: str
    number: int
    why: str
    at_ns: int | None
    owner: Owner

    def document(self) -> dict[str, Any]:
        """Return the example as a JSON object."""
        document = asdict(self)
        del document["owner"]
        return {**document, **self.owner._asdict()}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of judging a run. `sent`, `ended`, `acknowledged` count messages; `delivered` counts all
    deliveries.
    """

    sent: int
    delivered: int
    redelivered: int
    """Deliveries except the first of each message. Not a fault by itself."""
    ended: int
    acknowledged: int
    counts: Mapping[Kind, int]
    """Number of findings of each kind."""
    examples: tuple[Example, ...]
    """A bounded number of examples of each kind; of one kind key by key."""

    @property
    def faults(self) -> int:
        """Total number of faults."""
        return sum(self.counts[kind] for kind in FAULTS)

    @property
    def is_clean(self) -> bool:
        """True if there is no fault."""
        return not self.faults

    @property
    def in_order_and_complete(self) -> bool:
        """True if no message is lost, overtaken or skipped: each message was delivered at least once, and
        each key in order.
        """
        return not any(self.counts[kind] for kind in (Kind.LOST, *OF_ORDER))

    @property
    def exactly_once(self) -> bool:
        """True if there is no fault and no message was delivered twice."""
        return self.is_clean and not self.redelivered

    def of(self, kind: Kind) -> tuple[tuple[str, str, int], ...]:
        """Return producer, key and number of the examples of one kind."""
        return tuple(
            (example.producer, example.key, example.number)
            for example in self.examples
            if example.kind is kind
        )

    def document(self) -> dict[str, Any]:
        """Return the verdict as a JSON object."""
        return {
            "is_clean": self.is_clean,
            "sent": self.sent,
            "delivered": self.delivered,
            "redelivered": self.redelivered,
            "ended": self.ended,
            "acknowledged": self.acknowledged,
            **{kind.value: self.counts[kind] for kind in Kind},
            "examples": [example.document() for example in self.examples],
        }

    @property
    def summary(self) -> str:
        """The numbers of messages sent, of deliveries and repeated deliveries, and of findings of each kind, in one line."""
        findings = ", ".join(f"{self.counts[kind]} {kind.replace('_', ' ')}" for kind in Kind)
        return f"{self.sent} sent, {self.delivered} delivered, {self.redelivered} of them again: {findings}"

    def __str__(self) -> str:
        faults = [example for example in self.examples if example.kind in FAULTS]
        lines = [
            f"{fault.kind}: {fault.producer}, {fault.key}, {fault.number}: {fault.why}" for fault in faults
        ]
        return "\n".join([self.summary, *lines])


def check(
    records: Iterable[Record], *, demand_acknowledged: bool = False, examples: int = EXAMPLES
) -> Verdict:
    """Judge the histories of all producers and of the consumers of one subscription, and return the result.
    The records of one file must be in its order; the order of the files does not matter. Needs pyarrow.

    With `demand_acknowledged`, a message that was sent and delivered but never acknowledged counts as lost
    too. `examples` is the maximum number of examples of each kind. The check takes about 150 bytes of memory
    per record. Raises the errors of iterating over `records`.
    """
    columns = _Columns()
    columns.take(records)
    judge = _Judge(columns, examples)
    judge.process_records()
    judge.find_final_faults(demand_acknowledged)
    return judge.verdict()


class _Columns:
    """The records as columns of numbers. Each text is stored once, and is represented by a number: its index
    in `keys` or `producers`. An attachment of a consumer, an owner, is represented by its index in `owners`,
    and the owner of a sent message by `_NO_OWNER`.
    """

    def __init__(self) -> None:
        """Create empty columns."""
        self.at, self.number = array("q"), array("q")
        self.event, self.key, self.producer, self.owner = array("b"), array("i"), array("i"), array("i")
        self.keys: dict[str, int] = {}
        self.producers: dict[str, int] = {}
        self.owners: dict[Owner, int] = {}
        self.last_at = array("q")
        """Time of each owner's last line."""
        self.seeks = _Seeks()

    def take(self, records: Iterable[Record]) -> None:
        """Append the records, and update `last_at`; may be called repeatedly. Records of seeks are stored
        only in `seeks`, in their order.
        """
        keys, producers, owners, last_at = self.keys, self.producers, self.owners, self.last_at
        for record in records:
            at, event, producer, key, number = record[:5]
            if event in OF_SEEKS:
                self.seeks.take(event, at)
                continue
            self.at.append(at)
            self.event.append(_EVENTS[event])
            self.producer.append(producers.setdefault(producer, len(producers)))
            self.key.append(keys.setdefault(key, len(keys)))
            self.number.append(number)
            if event is Event.SENT:
                self.owner.append(_NO_OWNER)
                continue
            owner = owners.setdefault(Owner._make(record[5:]), len(owners))
            self.owner.append(owner)
            if owner == len(last_at):
                last_at.append(at)
            elif at > last_at[owner]:
                last_at[owner] = at

    def arrange(self) -> tuple[_Messages, Iterator[tuple[int, int, int, int, int]]]:
        """Return the messages, and an iterator over the records, key by key, and for each key in order of time.
        Records with the same time stay in the order in which they were read. A record is a tuple: the index of the
        key, `at_ns`, the code of the event in `_EVENTS`, the index of the message, and the index of the owner.

        Messages are ordered by key, producer and number, and the index of a message, from 0, is its place in this
        order. The predecessor of a message in the same flow therefore has the index before. Needs pyarrow.
        """
        import pyarrow as pa
        from pyarrow import compute

        table = pa.table(
            {
                "key": _shared(self.key, pa.int32()),
                "producer": _shared(self.producer, pa.int32()),
                "number": _shared(self.number, pa.int64()),
                "at": _shared(self.at, pa.int64()),
                "row": pa.array(range(len(self.at)), pa.int32()),
                "event": _shared(self.event, pa.int8()),
                "owner": _shared(self.owner, pa.int32()),
            }
        ).sort_by([(name, "ascending") for name in ("key", "producer", "number")])
        begins_flow = compute.or_(_changes(table["key"]), _changes(table["producer"]))
        begins_message = compute.or_(begins_flow, _changes(table["number"]))
        table = table.append_column("message", _count(begins_message)).append_column(
            "flow", _count(begins_flow)
        )
        firsts = table.filter(begins_message)
        messages = _Messages(*(_values(firsts[name]) for name in ("key", "producer", "number", "flow")))
        del firsts
        rows = table.drop_columns(["producer", "number", "flow"]).sort_by(
            [(name, "ascending") for name in ("key", "at", "row")]
        )
        del table
        return messages, zip(
            *(_values(rows[name]) for name in ("key", "at", "event", "message", "owner")), strict=True
        )


class _Seeks:
    """The periods in which seeks of the subscription were in progress."""

    def __init__(self) -> None:
        self._finished: list[tuple[int, int]] = []
        self._open: list[int] = []

    def take(self, event: Event, at: int) -> None:
        """Record that a seek began (SEEKING) or was done (SOUGHT) at `at`, in ns. The lines come in the order
        of the file.

        If the requesting process died, its seek stays open. Seeks follow one another, so an open seek is done
        when a later seek is done. Without a later seek, it may be in progress forever.
        """
        if event is Event.SEEKING:
            self._open.append(at)
        else:
            self._finished += [(begun_at, at) for begun_at in self._open]
            self._open = []

    def can_undo(self, acknowledged_at: int, at: int) -> bool:
        """Return True if a message that was acknowledged at `acknowledged_at` may be delivered again at `at`,
        because a seek had begun by `at` and was not done before the acknowledgement.
        """
        return any(
            begun_at <= at and acknowledged_at <= ended_at for begun_at, ended_at in self._finished
        ) or any(begun_at <= at for begun_at in self._open)


class _Messages(NamedTuple):
    """Columns of the messages: the indexes of their texts, their numbers, and their flows. A flow is a key of
    one producer.
    """

    key: memoryview
    producer: memoryview
    number: memoryview
    flow: memoryview


def _shared(values: array[int], kind: pa.DataType) -> pa.Array:
    """Return the values as an Arrow array that shares their memory."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _values(column: pa.ChunkedArray) -> memoryview:
    """Return the numbers of a column of 8, 32 or 64 bits, which must not contain nulls, in the order of its
    rows.
    """
    combined = column.combine_chunks()
    code = _CODES[combined.type.bit_width]
    buffer = combined.buffers()[1]
    values = memoryview(buffer).cast("B").cast(code) if buffer is not None else memoryview(array(code))
    return values[combined.offset : combined.offset + len(combined)]


def _changes(column: pa.ChunkedArray) -> pa.Array:
    """Return a boolean for each row: True if its value differs from the value of the row before. True for the
    first row. The column must not contain nulls.
    """
    import pyarrow as pa
    from pyarrow import compute

    combined = column.combine_chunks()
    first = pa.array([True] if len(combined) else [], pa.bool_())
    return pa.concat_arrays([first, compute.not_equal(combined[1:], combined[: max(len(combined) - 1, 0)])])


def _count(begins: pa.Array) -> pa.Array:
    """Return for each row the number of true values up to and including the row, minus 1: the index, from 0,
    of the group of rows that began with the last true value.
    """
    import pyarrow as pa
    from pyarrow import compute

    return compute.subtract(compute.cumulative_sum(begins.cast(pa.int32())), pa.scalar(1, pa.int32()))


@dataclass(slots=True)
class _Progress:
    """The progress of an attachment through a flow: upwards from a first message, until the attachment goes
    back.
    """

    start: int
    last: int
    skipped: list[tuple[int, int]]
    """Ranges of messages that were skipped, both ends included."""

    def has_skipped(self, message: int) -> bool:
        return any(first <= message <= last for first, last in self.skipped)


class _KeyState:
    """The state of a key at the present record."""

    __slots__ = ("followed", "highest", "present", "progress_of", "working")

    def __init__(self) -> None:
        """Create the state of a key before its first record."""
        self.highest: dict[int, int] = {}
        """Highest delivered message of each flow."""
        self.progress_of: dict[tuple[int, int], _Progress] = {}
        """Progress by flow and owner."""
        self.present = _NO_OWNER
        self.followed: set[int] = set()
        """Owners that have had the key, including the present owner."""
        self.working: dict[int, set[int]] = {}
        """Messages that each owner has begun and not ended."""


class _Judge:
    """Judges the records key by key, each key in order of time. A message and a flow (a key of one producer)
    are the numbers of `_Columns.arrange`, an owner is an attachment of a consumer, as its index in
    `_Columns.owners`, and times are in ns.
    """

    def __init__(self, columns: _Columns, examples: int) -> None:
        """Put the records of `columns` in order. `examples` is the maximum number of examples of each
        kind.
        """
        self._messages, self._rows = columns.arrange()
        self._last_at = columns.last_at
        self._keys, self._producers = list(columns.keys), list(columns.producers)
        self._owners = list(columns.owners)
        count = len(self._messages.number)
        self._sent, self._delivered, self._ended = (bytearray(count) for _ in range(3))
        self._acknowledged_at = array("q", bytes(8 * count))
        """Time of the last acknowledgement of each message; 0 if there is none."""
        self._seeks = columns.seeks
        self._deliveries = 0
        self._counts = dict.fromkeys(Kind, 0)
        self._examples: dict[Kind, list[Example]] = {kind: [] for kind in Kind}
        self._max_examples = examples
        self._key = _KeyState()

    def process_records(self) -> None:
        """Judge every record, and record the findings that appear before the end of the histories. Call it
        once.
        """
        handlers: dict[Event, Callable[[int, int, int], None]] = {
            Event.SENT: self._on_sent,
            Event.DELIVERED: self._on_delivered,
            Event.BEGUN: self._on_begun,
            Event.ENDED: self._on_ended,
            Event.ACKNOWLEDGED: self._on_acknowledged,
            Event.FAILED: self._on_failed,
        }
        handler_of_code = [handlers[event] for event in Event if event not in OF_SEEKS]
        present = -1
        for key, at, event, message, owner in self._rows:
            if key != present:
                present, self._key = key, _KeyState()
            handler_of_code[event](message, owner, at)

    def find_final_faults(self, demand_acknowledged: bool) -> None:
        """Record the findings that appear only when all records are known: unconfirmed messages (delivered,
        but not recorded as sent), and lost messages (sent, but never delivered). With `demand_acknowledged`,
        a message that was sent and delivered but never acknowledged is lost too. Call it once, after
        `process_records`.
        """
        for message, (sent, delivered) in enumerate(zip(self._sent, self._delivered, strict=True)):
            if delivered and not sent:
                self._find(
                    Kind.UNCONFIRMED, message, "delivered, but no producer recorded that it was stored"
                )
            elif sent and not delivered:
                self._find(Kind.LOST, message, "sent and never delivered")
            elif sent and demand_acknowledged and not self._acknowledged_at[message]:
                self._find(Kind.LOST, message, "delivered and never acknowledged")

    def verdict(self) -> Verdict:
        """Return the result."""
        return Verdict(
            sent=sum(self._sent),
            delivered=self._deliveries,
            redelivered=self._deliveries - sum(self._delivered),
            ended=sum(self._ended),
            acknowledged=sum(map(bool, self._acknowledged_at)),
            counts=self._counts,
            examples=tuple(example for kind in Kind for example in self._examples[kind]),
        )

    def _on_sent(self, message: int, _owner: int, _at: int) -> None:
        self._sent[message] = 1

    def _on_delivered(self, message: int, owner: int, at: int) -> None:
        """Count a delivery of the message to the attachment `owner` at the time `at`, and record the faults that the
        delivery shows: TWO_OWNERS (`_check_owner`); DUPLICATED, if the message was delivered and acknowledged before
        and no seek explains the repetition; OVERTAKEN, if the message is delivered for the first time after a later
        message of its flow; and the faults of `_follow_flow`.
        """
        self._deliveries += 1
        self._check_owner(message, owner, at)
        is_repeated = bool(self._delivered[message])
        acknowledged_at = self._acknowledged_at[message]
        if is_repeated and acknowledged_at and not self._seeks.can_undo(acknowledged_at, at):
            self._find(Kind.DUPLICATED, message, "delivered again after it was acknowledged", at, owner)
        flow = self._messages.flow[message]
        highest = self._key.highest.get(flow, -1)
        if not is_repeated and message < highest:
            why = f"delivered for the first time after number {self._messages.number[highest]}"
            self._find(Kind.OVERTAKEN, message, why, at, owner)
        self._key.highest[flow] = max(message, highest)
        self._follow_flow(flow, message, owner, at)
        self._delivered[message] = 1

    def _check_owner(self, message: int, owner: int, at: int) -> None:
        """Make the attachment `owner` the present owner of the key. If `owner` was the key's owner before, and
        another attachment has received the key since then, record the fault TWO_OWNERS for the message instead, and
        leave the present owner unchanged.
        """
        state = self._key
        if owner == state.present:
            return
        if owner in state.followed:
            why = f"delivered to an attachment that {self._owners[state.present]} had followed"
            self._find(Kind.TWO_OWNERS, message, why, at, owner)
            return
        state.followed.add(owner)
        state.present = owner

    def _follow_flow(self, flow: int, message: int, owner: int, at: int) -> None:
        """Record that the attachment `owner` received the message of the flow (a key of one producer) at the time
        `at`. An attachment receives rising numbers. The attachment may also go back to the same or a lower number and
        continue from there, unless it had skipped that message.

        If the attachment skips messages, and at least one of the skipped messages was not delivered to any consumer
        before, record one GAP, for the first such message. If the attachment receives a message that it had skipped,
        and the message was delivered before, record OVERTAKEN.
        """
        progress = self._key.progress_of.get((flow, owner))
        if progress is None or (message <= progress.last and not progress.has_skipped(message)):
            self._key.progress_of[flow, owner] = _Progress(message, message, [])
            return
        if message < progress.last:
            if self._delivered[message]:  # otherwise it is recorded as a first delivery
                why = f"delivered again behind number {self._messages.number[progress.last]}, without its successors"
                self._find(Kind.OVERTAKEN, message, why, at, owner)
            return
        if message > progress.last + 1:
            progress.skipped.append((progress.last + 1, message - 1))
            missing = self._delivered.find(0, progress.last + 1, message)
            if missing >= 0:
                numbers = self._messages.number
                why = f"went from number {numbers[progress.last]} on to {numbers[message]}"
                self._find(Kind.GAP, missing, why, at, owner)
        progress.last = message

    def _on_begun(self, message: int, owner: int, at: int) -> None:
        """Record that the attachment `owner` has begun to process the message at the time `at`. Record OVERTAKEN if
        the predecessor of the message was delivered and its processing has never ended.

        Record TWO_OWNERS for each other attachment that is still processing a message of the key and has a line after
        `at`. An attachment without a later line was killed before; its unfinished processing is dropped.
        """
        flows, before = self._messages.flow, message - 1
        if (
            before >= 0
            and flows[before] == flows[message]
            and not self._ended[before]
            and self._delivered[before]  # otherwise it is recorded as lost, skipped or delivered late
        ):
            why = f"begun before number {self._messages.number[before]} had ended for the first time"
            self._find(Kind.OVERTAKEN, message, why, at, owner)
        working = self._key.working
        for other in [worker for worker in working if worker != owner]:
            if self._last_at[other] > at:
                why = f"begun while {self._owners[other]} worked on the key"
                self._find(Kind.TWO_OWNERS, message, why, at, owner)
            else:
                del working[other]  # the process was killed before this time
        working.setdefault(owner, set()).add(message)

    def _on_ended(self, message: int, owner: int, at: int) -> None:
        self._ended[message] = 1
        self._on_failed(message, owner, at)

    def _on_failed(self, message: int, owner: int, _at: int) -> None:
        """End the processing of the message by its owner, without counting the message as ended, which its
        successor waits for. No effect if the owner is not processing the message.
        """
        messages_in_progress = self._key.working.get(owner)
        if messages_in_progress is not None:
            messages_in_progress.discard(message)
            if not messages_in_progress:
                del self._key.working[owner]

    def _on_acknowledged(self, message: int, _owner: int, at: int) -> None:
        self._acknowledged_at[message] = max(at, 1)

    def _find(
        self, kind: Kind, message: int, why: str, at: int | None = None, owner: int = _NO_OWNER
    ) -> None:
        """Count a finding, and keep it as an example while its kind has fewer than the maximum. `at` is the
        time of the record that shows the finding, and `owner` the number of its attachment, if there are any.
        """
        self._counts[kind] += 1
        if len(self._examples[kind]) < self._max_examples:
            key, producer = (
                self._keys[self._messages.key[message]],
                self._producers[self._messages.producer[message]],
            )
            owner_of_example = self._owners[owner] if owner != _NO_OWNER else Owner()
            number = self._messages.number[message]
            self._examples[kind].append(Example(kind, producer, key, number, why, at, owner_of_example))
