"""Sensors: the events that wake the worker.

A sensor declares which notifications concern it, which work they request, and when it fires without a
notification. The sensor does not do the work; the work loop does. A notification only says that the tables
should be read: a woken worker reads the tables, and so does the loop's periodic sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from sqlalchemy import Connection

from controller.domain.decision import Lane
from controller.services.worker.work import NOTHING, Work
from controller.store.decisions import evaluations
from controller.store.journal import claims, deletion_entries
from controller.store.shards import Shards


@dataclass(slots=True, eq=False)
class Sensor:
    """An event that wakes the worker: a notification, a point in time, or both."""

    name: str
    work: Work
    """The work that the event requests, for all topics."""
    channels: tuple[str, ...] = ()
    fires_at: Callable[[Connection, Shards], datetime | None] | None = None
    """Reads the next instant (database time) at which the sensor fires without a notification for topics of the
    shards, or None if no instant is known. None: the sensor fires on notifications only.
    """
    patience_seconds: float = 0.0
    """Seconds that the work of a notification may wait for more work of its kind."""
    is_measured: bool = False
    """True if the time from a notification to its evaluation is recorded as a metric."""
    fires_for_patient: bool = False
    """True if the sensor also fires without a notification for the work of sensors with patience. While such
    work is deferred, this sensor is not queried.
    """

    def notified(self, topic_id: int | None) -> Work:
        """Return the work that a notification about the topic requests: the sensor's work, limited to this topic.
        None stands for a notification about any topic; the work is then for all due topics of the held shards. Work
        without lanes, which only runs operations, is never limited: each notification runs all due operations.
        """
        if topic_id is None or not self.work.lanes:
            return self.work
        return replace(self.work, topic_ids=frozenset({topic_id}))

    @property
    def due(self) -> Work:
        """The work to do at the instant of `fires_at`."""
        return NOTHING if self.fires_at is None else self.work


# Consumers of a stream subscription register or leave: the consumer lane is evaluated at once. After an action,
# the lane itself waits for further consumers.
CONSUMERS = Sensor(
    "consumers", Work(frozenset({Lane.CONSUMER}), None), ("cleave_consumers",), is_measured=True
)

INPUT_PATIENCE_SECONDS = 0.25
"""Seconds that changes of load, layout or policy wait for each other. Layouts that change one after another
are evaluated together, since most of their topics are in a cooldown.
"""


def default_sensors(*, load_lane: bool, merge_lane: bool, call_timeout_seconds: float) -> tuple[Sensor, ...]:
    """Return the worker's sensors, the same five for any arguments. `load_lane` and `merge_lane` add these
    lanes to the consumer lane in the evaluations that `inputs` and `due` request. `call_timeout_seconds` is the
    longest data-plane call, for which a takeover waits after the end of a claim.
    """
    lanes = frozenset(
        {Lane.CONSUMER} | ({Lane.LOAD} if load_lane else set()) | ({Lane.MERGE} if merge_lane else set())
    )
    evaluation, operations = Work(lanes, None), Work(operations=True)
    return (
        CONSUMERS,
        # Load was written, or a layout or policy changed.
        Sensor(
            "inputs",
            evaluation,
            ("cleave_load", "cleave_layout", "cleave_policy"),
            patience_seconds=INPUT_PATIENCE_SECONDS,
        ),
        # An evaluation is no longer valid (`valid_until`), or a pause after an aborted operation ends (`not_before`).
        Sensor(
            "due",
            evaluation,
            fires_at=lambda tx, shards: evaluations.next_due(tx, lanes, shards),
            fires_for_patient=True,
        ),
        # An operation was intended, the pause before a retry ended, or the claim of a dead runner expired.
        Sensor(
            "operations",
            operations,
            ("cleave_operations",),
            fires_at=partial(claims.next_due, call_timeout_seconds=call_timeout_seconds),
        ),
        # A superfluous log is due for deletion, or for the second check that closes its deletion entry. The threads
        # of operations process deletion entries afterwards, of any shard.
        Sensor("deletion_entries", operations, fires_at=lambda tx, _shards: deletion_entries.next_due(tx)),
    )


def everything(sensors: Iterable[Sensor]) -> Work:
    """Return the work that needs no notification: evaluate all topics that are due, and run all operations that can
    be claimed. The lanes are those of the sensors that have `fires_at`; without such a sensor no lane is evaluated.
    The worker does this work in its first round, in a sweep, and after a lost connection.
    """
    work = Work(operations=True, topic_ids=None)
    for sensor in sensors:
        work = work | sensor.due
    return work
