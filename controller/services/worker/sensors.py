"""Sensors: the things the worker can be woken by, one small object each.

A sensor says which notifications concern it and what work they ask for, and when it will fire by itself. It performs
nothing: the work loop does. Notifications are a doorbell, never the truth: a worker that is woken drains the tables,
and the loop's slow sweep drains them too.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection

from controller.domain.decision import Lane
from controller.services.worker.work import NOTHING, Work
from controller.store.decisions import evaluations
from controller.store.journal import claims, tombstones
from controller.store.shards import Shards


class Sensor:
    """One thing the worker can be woken by: by a notification, by an instant, or by both."""

    name = ""
    channels: tuple[str, ...] = ()
    patience_seconds = 0.0
    """How long what a notification asks for may wait for more of its kind."""
    is_measured = False
    """Whether the time from a notification to its evaluation is a metric."""
    fires_for_patient = False
    """Whether it also fires by itself for what sensors with patience were notified of. While their work is put off it
    is not asked.
    """

    def notified(self, topic_id: int | None) -> Work:  # noqa: ARG002 - the default answer needs no topic
        """Work for a notification about the topic, or (None) about any topic of the shards held."""
        return NOTHING

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:  # noqa: ARG002 - as above
        """The next instant (database time) at which it fires without a notification, or None."""
        return None

    def due(self) -> Work:
        """Work to do when that instant has come."""
        return NOTHING


class ConsumerSensor(Sensor):
    """Consumers of a stream subscription registered or left: the consumer lane, at once. The lane itself collects those that come
    after an act.
    """

    name = "consumers"
    is_measured = True
    channels = ("cleave_consumers",)

    def notified(self, topic_id: int | None) -> Work:
        """The consumer lane of the topic named."""
        return Work(frozenset({Lane.CONSUMER}), None if topic_id is None else frozenset({topic_id}))


INPUT_PATIENCE_SECONDS = 0.25
"""Layouts that change one after the other are evaluated together, since most are in a cooldown anyway."""


class InputSensor(Sensor):
    """Load was written, a layout or a policy changed: every lane this worker has."""

    name = "inputs"
    patience_seconds = INPUT_PATIENCE_SECONDS
    channels = ("cleave_load", "cleave_layout", "cleave_policy")

    def __init__(self, lanes: frozenset[Lane]) -> None:
        self._lanes = lanes

    def notified(self, topic_id: int | None) -> Work:
        """Those lanes, for the topic named or for all dirty ones."""
        return Work(self._lanes, None if topic_id is None else frozenset({topic_id}))


class DueSensor(Sensor):
    """An answer stopped being valid, or a pause after an abort ended (`valid_until`, `not_before`)."""

    name = "due"
    fires_for_patient = True

    def __init__(self, lanes: frozenset[Lane]) -> None:
        self._lanes = lanes

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:
        """The earliest instant at which an evaluation falls due."""
        return evaluations.next_due(tx, self._lanes, shards)

    def due(self) -> Work:
        """Those lanes, for whatever is due."""
        return Work(self._lanes, None)


class OperationSensor(Sensor):
    """Somebody intended an operation, a retry's pause ended, or a dead runner's claim expired."""

    name = "operations"
    channels = ("cleave_operations",)

    def __init__(self, call_timeout_seconds: float) -> None:
        self._call_timeout_seconds = call_timeout_seconds

    def notified(self, topic_id: int | None) -> Work:  # noqa: ARG002 - the journal is drained whatever rang
        """Drain the journal."""
        return Work(operations=True)

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:
        """The earliest instant at which a live operation may be claimed."""
        return claims.next_due(tx, shards, call_timeout_seconds=self._call_timeout_seconds)

    def due(self) -> Work:
        """Drain the journal."""
        return Work(operations=True)


class TombstoneSensor(Sensor):
    """A log that nobody needs any more is due for deletion, or for the second look that closes its tombstone."""

    name = "tombstones"

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:  # noqa: ARG002 - any worker may delete
        """The earliest instant at which a tombstone may be worked on."""
        return tombstones.next_due(tx)

    def due(self) -> Work:
        """The threads that drain the journal sweep tombstones afterwards."""
        return Work(operations=True)


def default_sensors(*, load_lane: bool, merge_lane: bool, call_timeout_seconds: float) -> tuple[Sensor, ...]:
    """The worker's sensors; the lanes it has besides the consumer lane are a setting."""
    lanes = frozenset(
        {Lane.CONSUMER} | ({Lane.LOAD} if load_lane else set()) | ({Lane.MERGE} if merge_lane else set())
    )
    return (
        ConsumerSensor(),
        InputSensor(lanes),
        DueSensor(lanes),
        OperationSensor(call_timeout_seconds),
        TombstoneSensor(),
    )


def everything(sensors: Iterable[Sensor]) -> Work:
    """What the first round, a sweep and a lost connection ask for: drain all that is dirty, due or claimable."""
    work = Work(operations=True, topic_ids=None)
    for sensor in sensors:
        work = work | sensor.due()
    return work
