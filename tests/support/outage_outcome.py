"""The result of one scene on one data plane: what was acknowledged, delivered, lost, late, deleted, and how fast it went on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from controller.client.history import Message, Record, read_history
from controller.client.history_check import OF_ORDER, Kind, check

LATE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Window:
    """Instants of the outage (monotonic, ns). What was acknowledged before `losing_since_ns` is replicated or backed up.

    Where `losing_since_ns` is None nothing acknowledged may be lost.
    """

    began_ns: int
    ended_ns: int
    losing_since_ns: int | None = None

    @property
    def seconds(self) -> float:
        """From the first fault until the promoted or restored server answers."""
        return round((self.ended_ns - self.began_ns) / 1e9, 2)

    def had_alone(self, acknowledged_ns: int) -> bool:
        """Whether the server that is gone may have been the only one to have a message acknowledged then."""
        return self.losing_since_ns is not None and self.losing_since_ns <= acknowledged_ns < self.ended_ns


@dataclass(frozen=True, slots=True)
class Reading:
    """What one subscription received of all that was acknowledged."""

    delivered: int
    lost: int
    """Acknowledged and never delivered, without `lost_with_server`."""
    lost_after: int
    """Of these, those acknowledged after the promotion or the restore."""
    lost_with_server: int
    """Never delivered, and acknowledged while only the server that is gone had them: a loss on embedded logs only."""
    out_of_order: int
    duplicates: int
    """Delivered again after their acknowledgement."""
    examples: tuple[str, ...] = field(compare=False, default=())


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one plane."""

    plane: str
    acknowledged: int
    late: int
    """Messages that the live subscription received `LATE_SECONDS` after their acknowledgement to the producer, or later."""
    live: Reading
    """The subscription whose consumers ran all the time."""
    audit: Reading
    """The subscription that nobody read before the end, so that no log with messages may be deleted."""
    deleted_logs: Mapping[str, int]
    """Logs that disappeared after the outage, with the messages that the audit had not read in them."""
    outage_seconds: float
    producer_seconds: Mapping[str, float | None]
    """From the outage's end to the first acknowledgement; None where there was none within the scene's limit."""
    every_key_seconds: Mapping[str, float | None]
    """From the outage's end until each producer had an acknowledgement of every key, and so of every range."""
    consumer_seconds: Mapping[str, float | None]
    """From the outage's end to the next message."""
    reshape_seconds: float | None
    """From the outage's end until the workers had ended a split that was requested after it."""
    longest_pause_seconds: Mapping[str, float]
    """Of each producer, between two acknowledgements."""
    errors: tuple[str, ...] = ()
    """Of clients that ended by themselves."""
    notes: tuple[str, ...] = ()
    """Refused requests, and findings of the maintenance."""

    @property
    def deleted_unread(self) -> int:
        """Unread messages in the logs that disappeared."""
        return sum(self.deleted_logs.values())

    def broken_laws(self, *, duplicates: bool, disorder: bool = False) -> list[str]:
        """The laws of every outage that did not hold. `duplicates`: acknowledgements of consumers may be lost with a server.
        `disorder`: logs went back in time between two appends of a producer.
        """
        resumed = {
            **{f"{name}, every key,": seconds for name, seconds in self.every_key_seconds.items()},
            **self.consumer_seconds,
            "reshapes": self.reshape_seconds,
        }
        laws = {
            "a log with unread messages was deleted": not self.deleted_unread,
            "a client ended by itself": not self.errors,
            **{f"{name} did not continue": seconds is not None for name, seconds in resumed.items()},
        }
        for name, one in (("live", self.live), ("audit", self.audit)):
            laws |= {
                f"{name}: {one.lost} acknowledged messages were never delivered": not one.lost,
                f"{name}: {one.out_of_order} messages out of order": disorder or not one.out_of_order,
                f"{name}: {one.duplicates} messages again": duplicates or not one.duplicates,
            }
        return [f"{self.plane}: {law}" for law, holds in laws.items() if not holds]

    def document(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.plane}: acknowledged {self.acknowledged}, late {self.late}, outage {self.outage_seconds} s",
            f"  live : {_figures(self.live)}",
            f"  audit: {_figures(self.audit)}",
            f"  deleted logs {len(self.deleted_logs)} with {self.deleted_unread} unread: {dict(self.deleted_logs)}",
            f"  producers continue after {dict(self.producer_seconds)} s, longest pause {dict(self.longest_pause_seconds)} s",
            f"  producers have every key after {dict(self.every_key_seconds)} s",
            f"  consumers continue after {dict(self.consumer_seconds)} s, a new split is done after {self.reshape_seconds} s",
            *(f"  {told}" for told in (*self.errors, *self.notes)),
        ]
        return "\n".join(lines)


def reading(
    acknowledged: Mapping[Message, int],
    received: Mapping[Message, int],
    histories: Sequence[Path],
    window: Window,
) -> Reading:
    """Judge one subscription. `acknowledged` and `received` have the first instant of each message."""
    missing = {message: at for message, at in acknowledged.items() if message not in received}
    lost = {message: at for message, at in missing.items() if not window.had_alone(at)}
    verdict = check(_without(missing, histories), examples=3)
    told = [f"{one.kind} {one.producer} {one.key} {one.number}: {one.why}" for one in verdict.examples]
    return Reading(
        delivered=len(acknowledged) - len(missing),
        lost=len(lost),
        lost_after=sum(at >= window.ended_ns for at in lost.values()),
        lost_with_server=len(missing) - len(lost),
        out_of_order=sum(verdict.counts[kind] for kind in OF_ORDER),
        duplicates=verdict.counts[Kind.DUPLICATED],
        examples=tuple(told),
    )


def late(acknowledged: Mapping[Message, int], received: Mapping[Message, int]) -> int:
    """Messages received `LATE_SECONDS` after their acknowledgement, or later."""
    return sum(at - acknowledged.get(message, at) > LATE_SECONDS * 1e9 for message, at in received.items())


def _without(missing: Collection[Message], histories: Sequence[Path]) -> Iterator[Record]:
    """The order is that of what was delivered: a message that is gone is counted as lost and not as a gap as well."""
    return (
        record
        for record in read_history(*histories)
        if (record.producer, record.key, record.number) not in missing
    )


def _figures(one: Reading) -> str:
    found = {name: figure for name, figure in asdict(one).items() if name != "examples"}
    examples = "".join(f"\n      {example}" for example in one.examples)
    return ", ".join(f"{name} {figure}" for name, figure in found.items()) + examples
