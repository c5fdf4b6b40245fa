"""Sensors: the things the worker can be woken by, one small object each.

A sensor says which notifications concern it and what work they ask for, and when it will fire by itself. It
performs nothing: the work loop does. Notifications are a doorbell, never the truth: whoever is woken drains the
tables, and the loop's slow sweep drains them too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection

from controller.domain.decision import Lane
from controller.store import evaluations, operations
from controller.store.shards import Shards


@dataclass(frozen=True, slots=True)
class Work:
    """What to do next: lanes to evaluate, for some topics or (None) for all dirty ones; operations to run."""

    lanes: frozenset[Lane] = frozenset()
    topic_ids: frozenset[int] | None = frozenset()
    operations: bool = False

    def __or__(self, other: Work) -> Work:
        topics = None if self.topic_ids is None or other.topic_ids is None else self.topic_ids | other.topic_ids
        return Work(self.lanes | other.lanes, topics, self.operations or other.operations)


NOTHING = Work()


class Sensor(Protocol):
    """One thing the worker can be woken by."""

    name: str
    channels: tuple[str, ...]

    def notified(self, payload: str, shards: Shards) -> Work:
        """Work that a notification on one of the channels asks for; NOTHING if it concerns another worker."""

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:
        """The next instant (database time) at which it fires without a notification, or None."""

    def due(self) -> Work:
        """Work to do when that instant has come."""


def _topic_work(payload: str, shards: Shards, lanes: frozenset[Lane]) -> Work:
    """Work for the topic a payload names first (`17` or `17:4`); an empty payload means any topic."""
    head = payload.split(":", 1)[0]
    if not head.isdigit():
        return Work(lanes, None)
    topic_id = int(head)
    return Work(lanes, frozenset({topic_id})) if shards.owns(topic_id) else NOTHING


@dataclass(frozen=True, slots=True)
class ConsumerSensor:
    """Consumers of a stream subscription registered or left: the consumer lane, at once."""

    lanes: frozenset[Lane] = frozenset({Lane.CONSUMER})
    name: str = "consumers"
    channels: tuple[str, ...] = ("cleave_consumers",)

    def notified(self, payload: str, shards: Shards) -> Work:
        """The consumer lane of the topic named."""
        return _topic_work(payload, shards, self.lanes)

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:
        """Never by itself."""
        return None

    def due(self) -> Work:
        """Nothing."""
        return NOTHING


@dataclass(frozen=True, slots=True)
class InputSensor:
    """Load was written, a layout or a policy changed: every lane this worker has."""

    lanes: frozenset[Lane]
    name: str = "inputs"
    channels: tuple[str, ...] = ("cleave_load", "cleave_layout", "cleave_policy")

    def notified(self, payload: str, shards: Shards) -> Work:
        """Those lanes, for the topic named or for all dirty ones."""
        return _topic_work(payload, shards, self.lanes)

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:
        """Never by itself."""
        return None

    def due(self) -> Work:
        """Nothing."""
        return NOTHING


@dataclass(frozen=True, slots=True)
class DueSensor:
    """An answer stopped being valid, or a pause after an abort ended (`valid_until`, `not_before`)."""

    lanes: frozenset[Lane]
    name: str = "due"
    channels: tuple[str, ...] = ()

    def notified(self, payload: str, shards: Shards) -> Work:
        """Nothing: it listens to no channel."""
        return NOTHING

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:
        """The earliest instant at which an evaluation falls due."""
        return evaluations.next_due(tx, self.lanes, shards)

    def due(self) -> Work:
        """Those lanes, for whatever is due."""
        return Work(self.lanes, None)


@dataclass(frozen=True, slots=True)
class OperationSensor:
    """Somebody intended an operation, a retry's pause ended, or a dead runner's claim expired."""

    name: str = "operations"
    channels: tuple[str, ...] = ("cleave_operations",)

    def notified(self, payload: str, shards: Shards) -> Work:
        """Run operations, if the topic is ours."""
        return Work(operations=True) if _topic_work(payload, shards, frozenset()).topic_ids or not payload else NOTHING

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:
        """The earliest instant at which a live operation may be claimed."""
        return operations.next_due(tx, shards)

    def due(self) -> Work:
        """Run operations."""
        return Work(operations=True)


def default_sensors(*, load_lane: bool, merge_lane: bool) -> tuple[Sensor, ...]:
    """The worker's sensors; the lanes it has besides the consumer lane are a setting."""
    lanes = frozenset({Lane.CONSUMER} | ({Lane.LOAD} if load_lane else set()) | ({Lane.MERGE} if merge_lane else set()))
    return (ConsumerSensor(), InputSensor(lanes), DueSensor(lanes), OperationSensor())


def everything(sensors: Iterable[Sensor]) -> Work:
    """What the first round, a sweep and a lost connection ask for: drain all that is dirty, due or claimable."""
    work = Work(operations=True, topic_ids=None)
    for sensor in sensors:
        work = work | sensor.due()
    return work
