"""Sensors: the events that wake the worker, one small class each.

A sensor declares which notifications concern it, which work they request, and when it fires without a
notification. The sensor does not do the work; the work loop does. A notification only says that the tables
should be read: a woken worker reads the tables, and so does the loop's periodic sweep.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection

from controller.domain.decision import Lane
from controller.services.worker.work import NOTHING, Work
from controller.store.decisions import evaluations
from controller.store.journal import claims, deletion_entries
from controller.store.shards import Shards


class Sensor:
    """An event that wakes the worker: a notification, a point in time, or both."""

    name = ""
    channels: tuple[str, ...] = ()
    patience_seconds = 0.0
    """Seconds that the work of a notification may wait for more work of its kind."""
    is_measured = False
    """True if the time from a notification to its evaluation is recorded as a metric."""
    fires_for_patient = False
    """True if the sensor also fires without a notification for the work of sensors with patience. While such
    work is deferred, this sensor is not queried.
    """

    def notified(self, topic_id: int | None) -> Work:  # noqa: ARG002 - the default answer needs no topic
        """Return the work that a notification about the topic requests; for None, about any topic of the held
        shards. By default none.
        """
        return NOTHING

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:  # noqa: ARG002 - as above
        """Return the next instant (database time) at which the sensor fires without a notification for topics
        of the shards; None if it never does.
        """
        return None

    def due(self) -> Work:
        """Return the work to do at the instant of `fires_at`. By default none."""
        return NOTHING


class ConsumerSensor(Sensor):
    """Fires when consumers of a stream subscription register or leave: evaluates the consumer lane at once.
    After an action, the lane itself waits for further consumers.
    """

    name = "consumers"
    is_measured = True
    channels = ("cleave_consumers",)

    def notified(self, topic_id: int | None) -> Work:
        """Return the consumer lane for the topic, or for all topics."""
        return Work(frozenset({Lane.CONSUMER}), None if topic_id is None else frozenset({topic_id}))


INPUT_PATIENCE_SECONDS = 0.25
"""Seconds that changes of load, layout or policy wait for each other. Layouts that change one after another
are evaluated together, since most of their topics are in a cooldown.
"""


class InputSensor(Sensor):
    """Fires when load was written, or a layout or policy changed: evaluates all lanes of this worker."""

    name = "inputs"
    patience_seconds = INPUT_PATIENCE_SECONDS
    channels = ("cleave_load", "cleave_layout", "cleave_policy")

    def __init__(self, lanes: frozenset[Lane]) -> None:
        self._lanes = lanes

    def notified(self, topic_id: int | None) -> Work:
        """Return the worker's lanes for the topic, or (None) for all topics that are due."""
        return Work(self._lanes, None if topic_id is None else frozenset({topic_id}))


class DueSensor(Sensor):
    """Fires when an evaluation is no longer valid (`valid_until`), or a pause after an aborted operation ends
    (`not_before`).
    """

    name = "due"
    fires_for_patient = True

    def __init__(self, lanes: frozenset[Lane]) -> None:
        self._lanes = lanes

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:
        """Return the earliest instant at which an evaluation is due; None if none becomes due by time."""
        return evaluations.next_due(tx, self._lanes, shards)

    def due(self) -> Work:
        """Return the worker's lanes for all topics that are due."""
        return Work(self._lanes, None)


class OperationSensor(Sensor):
    """Fires when an operation was intended, the pause before a retry ended, or the claim of a dead runner
    expired.
    """

    name = "operations"
    channels = ("cleave_operations",)

    def __init__(self, call_timeout_seconds: float) -> None:
        self._call_timeout_seconds = call_timeout_seconds

    def notified(self, topic_id: int | None) -> Work:  # noqa: ARG002 - each notification runs all due operations
        """Return work that runs all due operations."""
        return Work(operations=True)

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:
        """Return the earliest instant at which a live operation may be claimed; None if there is none."""
        return claims.next_due(tx, shards, call_timeout_seconds=self._call_timeout_seconds)

    def due(self) -> Work:
        """Return work that runs all due operations."""
        return Work(operations=True)


class DeletionEntrySensor(Sensor):
    """Fires when a superfluous log is due for deletion, or for the second check that closes its deletion
    entry.
    """

    name = "deletion_entries"

    def fires_at(self, tx: Connection, shards: Shards) -> datetime | None:  # noqa: ARG002 - any worker may delete
        """Return the earliest instant at which a deletion entry may be processed; None if no entry is open."""
        return deletion_entries.next_due(tx)

    def due(self) -> Work:
        """Return work that runs all due operations: its threads process deletion entries afterwards."""
        return Work(operations=True)


def default_sensors(*, load_lane: bool, merge_lane: bool, call_timeout_seconds: float) -> tuple[Sensor, ...]:
    """Return the worker's sensors. `load_lane` and `merge_lane` say which lanes the worker evaluates in
    addition to the consumer lane. `call_timeout_seconds` is the longest data-plane call, for which a takeover
    waits after the end of a claim.
    """
    lanes = frozenset(
        {Lane.CONSUMER} | ({Lane.LOAD} if load_lane else set()) | ({Lane.MERGE} if merge_lane else set())
    )
    return (
        ConsumerSensor(),
        InputSensor(lanes),
        DueSensor(lanes),
        OperationSensor(call_timeout_seconds),
        DeletionEntrySensor(),
    )


def everything(sensors: Iterable[Sensor]) -> Work:
    """Return the work of the first round, of a sweep, and after a lost connection: evaluate all topics that
    are due, and run all operations that can be claimed.
    """
    work = Work(operations=True, topic_ids=None)
    for sensor in sensors:
        work = work | sensor.due()
    return work
