"""The result of one scene on one data plane: messages acknowledged, delivered, lost, late and deleted, and the time until clients
continued.
"""

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
    """Instants of the outage (monotonic, ns). Messages acknowledged before `losing_since_ns` are replicated or backed up.

    If `losing_since_ns` is None, no acknowledged message may be lost.
    """

    began_ns: int
    ended_ns: int
    losing_since_ns: int | None = None

    @property
    def seconds(self) -> float:
        """Seconds from the first fault until the promoted or restored server answers."""
        return round((self.ended_ns - self.began_ns) / 1e9, 2)

    def had_alone(self, acknowledged_ns: int) -> bool:
        """Return True if the failed server may have been the only one with a message that was acknowledged at that instant."""
        return self.losing_since_ns is not None and self.losing_since_ns <= acknowledged_ns < self.ended_ns


@dataclass(frozen=True, slots=True)
class Reading:
    """Messages that one subscription received, compared with all acknowledged ones."""

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
        """Number of unread messages in the logs that disappeared."""
        return sum(self.deleted_logs.values())

    def broken_laws(self, *, duplicates: bool, disorder: bool = False) -> list[str]:
        """Return the laws of every outage that did not hold. `duplicates`: acknowledgements of consumers may be lost with a server.
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
        for name, subscription_reading in (("live", self.live), ("audit", self.audit)):
            laws |= {
                f"{name}: {subscription_reading.lost} acknowledged messages were never delivered": not subscription_reading.lost,
                f"{name}: {subscription_reading.out_of_order} messages out of order": disorder
                or not subscription_reading.out_of_order,
                f"{name}: {subscription_reading.duplicates} messages again": duplicates
                or not subscription_reading.duplicates,
            }
        return [f"{self.plane}: {law}" for law, holds in laws.items() if not holds]

    def document(self) -> dict[str, Any]:
        """Return the figures as a document."""
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
            *(f"  {line}" for line in (*self.errors, *self.notes)),
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
    lines = [
        f"{example.kind} {example.producer} {example.key} {example.number}: {example.why}"
        for example in verdict.examples
    ]
    return Reading(
        delivered=len(acknowledged) - len(missing),
        lost=len(lost),
        lost_after=sum(at >= window.ended_ns for at in lost.values()),
        lost_with_server=len(missing) - len(lost),
        out_of_order=sum(verdict.counts[kind] for kind in OF_ORDER),
        duplicates=verdict.counts[Kind.DUPLICATED],
        examples=tuple(lines),
    )


def late(acknowledged: Mapping[Message, int], received: Mapping[Message, int]) -> int:
    """Return the number of messages received `LATE_SECONDS` after their acknowledgement, or later."""
    return sum(at - acknowledged.get(message, at) > LATE_SECONDS * 1e9 for message, at in received.items())


def _without(missing: Collection[Message], histories: Sequence[Path]) -> Iterator[Record]:
    """Yield the records without missing messages: the order is judged on delivered messages only, so that a lost message does not also
    count as a gap.
    """
    return (
        record
        for record in read_history(*histories)
        if (record.producer, record.key, record.number) not in missing
    )


def _figures(subscription_reading: Reading) -> str:
    figures = {name: figure for name, figure in asdict(subscription_reading).items() if name != "examples"}
    examples = "".join(f"\n      {example}" for example in subscription_reading.examples)
    return ", ".join(f"{name} {figure}" for name, figure in figures.items()) + examples
