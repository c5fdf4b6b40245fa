"""The order certificate: what the histories of a run say of every message.

What is a fault, and what is none:

- *lost*: sent and never handed out. On demand also: handed out and never acknowledged.
- *duplicated*: handed out again after it was acknowledged. A message that was not acknowledged may come again, and
  after a seek of the subscription so may one that was: acknowledgements from before the seek's end count for nothing from
  its beginning on.
- *overtaken*: work on a message began before its predecessor's had ended for the first time; or a message was handed
  out, the first time or again, behind one that should follow it. The predecessor is the message before it of the same
  producer and key. A key may go back to an earlier number and go on in order from there: its *rewind*.
- *gap*: within one attachment a key went on over a message that nobody had been handed before.
- *two owners*: consumers, or two attachments of one consumer, worked on the same key at the same time; or an attachment
  was handed a message of the key when another attachment had followed it.
- *unconfirmed*, which is no fault: handed out though no producer knows that it was stored. Its process died before the
  answer came.

Of work that a kill cut off, the history does not say how long it went on. It says that the process was alive when it
wrote its last line. So work without an end lasts until the last line of its attachment, and what began later
does not overlap it. Overlap that was longer than that is not seen.
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
"""How Python names whole numbers of so many bits."""


class Kind(StrEnum):
    """What may be found of a message; see the module."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    OVERTAKEN = "overtaken"
    GAP = "gap"
    TWO_OWNERS = "two_owners"
    UNCONFIRMED = "unconfirmed"


FAULTS = tuple(kind for kind in Kind if kind is not Kind.UNCONFIRMED)
OF_ORDER = (Kind.OVERTAKEN, Kind.GAP)


class Owner(NamedTuple):
    """Who was handed the message, and in which attachment. All empty where nobody was."""

    consumer: str = ""
    segment: str = ""
    bucket: str = ""
    attachment: str = ""

    def __str__(self) -> str:
        return f"{self.consumer} ({self.attachment} of {self.segment}/{self.bucket})"


@dataclass(frozen=True, slots=True)
class Example:
    """One message of which something was found. `at_ns` is when it showed; None where it shows at the end."""

    kind: Kind
    producer: str
    key: str
    number: int
    why: str
    at_ns: int | None
    owner: Owner

    def document(self) -> dict[str, Any]:
        """For programs."""
        told = asdict(self)
        del told["owner"]
        return {**told, **self.owner._asdict()}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a run. `sent`, `ended`, `acknowledged` count messages, `handed_out` every hand-out."""

    sent: int
    handed_out: int
    redelivered: int
    """Hand-outs but for the first of each message. No fault by itself."""
    ended: int
    acknowledged: int
    counts: Mapping[Kind, int]
    """How often each was found."""
    examples: tuple[Example, ...]
    """A bounded number of each kind, key by key."""

    @property
    def faults(self) -> int:
        """How many were found."""
        return sum(self.counts[kind] for kind in FAULTS)

    @property
    def is_clean(self) -> bool:
        """No fault was found."""
        return not self.faults

    @property
    def in_order_and_complete(self) -> bool:
        """At least once, each key in order."""
        return not any(self.counts[kind] for kind in (Kind.LOST, *OF_ORDER))

    @property
    def exactly_once(self) -> bool:
        """No fault, and nothing was handed out twice."""
        return self.is_clean and not self.redelivered

    def of(self, kind: Kind) -> tuple[tuple[str, str, int], ...]:
        """Producer, key and number of the examples of one kind."""
        return tuple((one.producer, one.key, one.number) for one in self.examples if one.kind is kind)

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "is_clean": self.is_clean,
            "sent": self.sent,
            "handed_out": self.handed_out,
            "redelivered": self.redelivered,
            "ended": self.ended,
            "acknowledged": self.acknowledged,
            **{kind.value: self.counts[kind] for kind in Kind},
            "examples": [one.document() for one in self.examples],
        }

    @property
    def summary(self) -> str:
        """The counts in one line."""
        found = ", ".join(f"{self.counts[kind]} {kind.replace('_', ' ')}" for kind in Kind)
        return f"{self.sent} sent, {self.handed_out} handed out, {self.redelivered} of them again: {found}"

    def __str__(self) -> str:
        faults = [one for one in self.examples if one.kind in FAULTS]
        said = [f"{one.kind}: {one.producer}, {one.key}, {one.number}: {one.why}" for one in faults]
        return "\n".join([self.summary, *said])


def check(
    records: Iterable[Record], *, demand_acknowledged: bool = False, examples: int = EXAMPLES
) -> Verdict:
    """Judge the histories of all producers and of the consumers of one subscription.

    `examples` bounds those of each kind. A record takes about 150 bytes of memory while this runs.
    """
    columns = _Columns()
    columns.take(records)
    judge = _Judge(columns, examples)
    judge.look_at_all()
    judge.look_at_the_end(demand_acknowledged)
    return judge.verdict()


class _Columns:
    """The records as columns of numbers. Texts are kept once each, and a number stands for them."""

    def __init__(self) -> None:
        self.at, self.number = array("q"), array("q")
        self.event, self.key, self.producer, self.owner = array("b"), array("i"), array("i"), array("i")
        self.keys: dict[str, int] = {}
        self.producers: dict[str, int] = {}
        self.owners: dict[Owner, int] = {}
        self.last_at = array("q")
        """When each owner's last line was written."""
        self.seeks = _Seeks()

    def take(self, records: Iterable[Record]) -> None:
        """Append them."""
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
            who = owners.setdefault(Owner._make(record[5:]), len(owners))
            self.owner.append(who)
            if who == len(last_at):
                last_at.append(at)
            elif at > last_at[who]:
                last_at[who] = at

    def arrange(self) -> tuple[_Messages, Iterator[tuple[int, int, int, int, int]]]:
        """The messages, and the records of each key in the order of time: key, at_ns, event, message, owner.

        A message is numbered by its place among those of all keys, so its predecessor's number is one less. Records of
        one instant stay in the order in which they were read.
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
    """From when to when somebody sought."""

    def __init__(self) -> None:
        self._over: list[tuple[int, int]] = []
        self._open: list[int] = []

    def take(self, event: Event, at: int) -> None:
        """The next line of a file. Who asks and dies leaves a seek open. It is done when a later one is, since seeks follow one
        another, and may be under way for ever if none comes.
        """
        if event is Event.SEEKING:
            self._open.append(at)
        else:
            self._over += [(begun, at) for begun in self._open]
            self._open = []

    def undo(self, acknowledged_at: int, at: int) -> bool:
        """Whether what was acknowledged then may come again at `at`."""
        return any(begun <= at and acknowledged_at <= over for begun, over in self._over) or any(
            begun <= at for begun in self._open
        )


class _Messages(NamedTuple):
    """Of each message, by its place: the places of its texts, its number, and its flow, which is a producer's key."""

    key: memoryview
    producer: memoryview
    number: memoryview
    flow: memoryview


def _shared(values: array[int], kind: pa.DataType) -> pa.Array:
    """The same memory as Arrow sees it."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _values(column: pa.ChunkedArray) -> memoryview:
    """The numbers of a column without nulls."""
    whole = column.combine_chunks()
    code = _CODES[whole.type.bit_width]
    buffer = whole.buffers()[1]
    values = memoryview(buffer).cast("B").cast(code) if buffer is not None else memoryview(array(code))
    return values[whole.offset : whole.offset + len(whole)]


def _changes(column: pa.ChunkedArray) -> pa.Array:
    """For each row whether its value is not that of the row before; the first one's is not."""
    import pyarrow as pa
    from pyarrow import compute

    whole = column.combine_chunks()
    first = pa.array([True] if len(whole) else [], pa.bool_())
    return pa.concat_arrays([first, compute.not_equal(whole[1:], whole[: max(len(whole) - 1, 0)])])


def _count(begins: pa.Array) -> pa.Array:
    """For each row how many before it, and itself, are true, less one."""
    import pyarrow as pa
    from pyarrow import compute

    return compute.subtract(compute.cumulative_sum(begins.cast(pa.int32())), pa.scalar(1, pa.int32()))


@dataclass(slots=True)
class _Pass:
    """How an attachment goes through a flow: from a message on, upwards, until it goes back."""

    start: int
    last: int
    jumped: list[tuple[int, int]]
    """Stretches that it went over, ends included."""

    def went_over(self, message: int) -> bool:
        return any(first <= message <= last for first, last in self.jumped)


class _OfOneKey:
    """What is known of a key up to the present instant."""

    __slots__ = ("followed", "highest", "passes", "present", "working")

    def __init__(self) -> None:
        self.highest: dict[int, int] = {}
        """Of each flow the latest message that was handed out."""
        self.passes: dict[tuple[int, int], _Pass] = {}
        """By flow and owner."""
        self.present = _NO_OWNER
        self.followed: set[int] = set()
        """Owners that have had the key, and the present one."""
        self.working: dict[int, set[int]] = {}
        """Of each owner the messages it has begun and not ended."""


class _Judge:
    """Goes through the records key by key, each in the order of time."""

    def __init__(self, columns: _Columns, examples: int) -> None:
        self._messages, self._rows = columns.arrange()
        self._last_at = columns.last_at
        self._keys, self._producers = list(columns.keys), list(columns.producers)
        self._owners = list(columns.owners)
        count = len(self._messages.number)
        self._sent, self._handed, self._ended = (bytearray(count) for _ in range(3))
        self._acknowledged_at = array("q", bytes(8 * count))
        """Of each message when it was last; 0 where it was not."""
        self._seeks = columns.seeks
        self._hand_outs = 0
        self._counts = dict.fromkeys(Kind, 0)
        self._examples: dict[Kind, list[Example]] = {kind: [] for kind in Kind}
        self._most = examples
        self._key = _OfOneKey()

    def look_at_all(self) -> None:
        """Every record."""
        acts: dict[Event, Callable[[int, int, int], None]] = {
            Event.SENT: self._on_sent,
            Event.HANDED_OUT: self._on_handed_out,
            Event.BEGUN: self._on_begun,
            Event.ENDED: self._on_ended,
            Event.ACKNOWLEDGED: self._on_acknowledged,
            Event.FAILED: self._on_failed,
        }
        by_code = [acts[event] for event in Event if event not in OF_SEEKS]
        present = -1
        for key, at, event, message, owner in self._rows:
            if key != present:
                present, self._key = key, _OfOneKey()
            by_code[event](message, owner, at)

    def look_at_the_end(self, demand_acknowledged: bool) -> None:
        """What shows only when everything is known."""
        for message, (sent, handed) in enumerate(zip(self._sent, self._handed, strict=True)):
            if handed and not sent:
                self._find(Kind.UNCONFIRMED, message, "handed out, and no producer knows that it was stored")
            elif sent and not handed:
                self._find(Kind.LOST, message, "sent and never handed out")
            elif sent and demand_acknowledged and not self._acknowledged_at[message]:
                self._find(Kind.LOST, message, "handed out and never acknowledged")

    def verdict(self) -> Verdict:
        """What was found."""
        return Verdict(
            sent=sum(self._sent),
            handed_out=self._hand_outs,
            redelivered=self._hand_outs - sum(self._handed),
            ended=sum(self._ended),
            acknowledged=sum(map(bool, self._acknowledged_at)),
            counts=self._counts,
            examples=tuple(one for kind in Kind for one in self._examples[kind]),
        )

    def _on_sent(self, message: int, _owner: int, _at: int) -> None:
        self._sent[message] = 1

    def _on_handed_out(self, message: int, owner: int, at: int) -> None:
        self._hand_outs += 1
        self._look_at_owner(message, owner, at)
        again = bool(self._handed[message])
        acknowledged_at = self._acknowledged_at[message]
        if again and acknowledged_at and not self._seeks.undo(acknowledged_at, at):
            self._find(Kind.DUPLICATED, message, "handed out again after it was acknowledged", at, owner)
        flow = self._messages.flow[message]
        highest = self._key.highest.get(flow, -1)
        if not again and message < highest:
            why = f"handed out for the first time after number {self._messages.number[highest]}"
            self._find(Kind.OVERTAKEN, message, why, at, owner)
        self._key.highest[flow] = max(message, highest)
        self._go_on(flow, message, owner, at)
        self._handed[message] = 1

    def _look_at_owner(self, message: int, owner: int, at: int) -> None:
        """An attachment that another one has followed is handed nothing more of the key."""
        state = self._key
        if owner == state.present:
            return
        if owner in state.followed:
            why = f"handed out to an attachment that {self._owners[state.present]} had followed"
            self._find(Kind.TWO_OWNERS, message, why, at, owner)
            return
        state.followed.add(owner)
        state.present = owner

    def _go_on(self, flow: int, message: int, owner: int, at: int) -> None:
        """An attachment goes upwards or begins again further down. In between it goes over nothing that is new."""
        course = self._key.passes.get((flow, owner))
        if course is None or (message <= course.last and not course.went_over(message)):
            self._key.passes[flow, owner] = _Pass(message, message, [])
            return
        if message < course.last:
            if self._handed[message]:  # else it is told as a first hand-out
                why = f"handed out again behind number {self._messages.number[course.last]}, without its successors"
                self._find(Kind.OVERTAKEN, message, why, at, owner)
            return
        if message > course.last + 1:
            course.jumped.append((course.last + 1, message - 1))
            missing = self._handed.find(0, course.last + 1, message)
            if missing >= 0:
                numbers = self._messages.number
                why = f"went from number {numbers[course.last]} on to {numbers[message]}"
                self._find(Kind.GAP, missing, why, at, owner)
        course.last = message

    def _on_begun(self, message: int, owner: int, at: int) -> None:
        flows, before = self._messages.flow, message - 1
        if (
            before >= 0
            and flows[before] == flows[message]
            and not self._ended[before]
            and self._handed[before]  # else it is told where it is lost, gone over, or handed out late
        ):
            why = f"begun before number {self._messages.number[before]} had ended for the first time"
            self._find(Kind.OVERTAKEN, message, why, at, owner)
        working = self._key.working
        for other in [one for one in working if one != owner]:
            if self._last_at[other] > at:
                why = f"begun while {self._owners[other]} worked on the key"
                self._find(Kind.TWO_OWNERS, message, why, at, owner)
            else:
                del working[other]  # a kill has cut it off
        working.setdefault(owner, set()).add(message)

    def _on_ended(self, message: int, owner: int, at: int) -> None:
        self._ended[message] = 1
        self._on_failed(message, owner, at)

    def _on_failed(self, message: int, owner: int, _at: int) -> None:
        """It is worked on no longer. If that was in vain, its successor may not begin yet."""
        begun = self._key.working.get(owner)
        if begun is not None:
            begun.discard(message)
            if not begun:
                del self._key.working[owner]

    def _on_acknowledged(self, message: int, _owner: int, at: int) -> None:
        self._acknowledged_at[message] = max(at, 1)

    def _find(
        self, kind: Kind, message: int, why: str, at: int | None = None, owner: int = _NO_OWNER
    ) -> None:
        self._counts[kind] += 1
        if len(self._examples[kind]) < self._most:
            key, producer = (
                self._keys[self._messages.key[message]],
                self._producers[self._messages.producer[message]],
            )
            who = self._owners[owner] if owner != _NO_OWNER else Owner()
            number = self._messages.number[message]
            self._examples[kind].append(Example(kind, producer, key, number, why, at, who))
