"""Load that brokers write themselves, for where no collector reads them: samples of counters, into the landing area.

They count as a collector's do. A sample is of a log that is watched; what is said of others is left out and said so.
Instants land as the database's time, by what the source's clock was ahead when it sent them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from controller.clock import to_ms
from controller.dataplane.base import Counters
from controller.domain.errors import InvalidInput, StoreUnavailable
from controller.landing.area import LandingArea
from controller.landing.samples import Sample, sample_table
from controller.store.load import readers
from controller.store.postgres.clock import Ahead, database_now
from controller.store.postgres.engine import Store
from controller.store.topics import watched_logs

LATEST_MS, OLDEST_MS = 60_000, 3_600_000
"""A sample is from so little ahead of the database's clock, and so long ago, at most."""


@dataclass(frozen=True, slots=True)
class Taken:
    """How many samples were landed, and the logs that nobody watches."""

    landed: int
    unknown: tuple[str, ...]


class LoadIntake:
    """For any thread."""

    def __init__(self, store: Store, area: LandingArea) -> None:
        self._store, self._area = store, area

    def take(self, source: str, counters: Sequence[Counters], sent_at_ms: int | None = None) -> Taken:
        """Land what a source says. `sent_at_ms` is by the clock of the counters' instants; None: that of the latest instant.

        Raises InvalidInput for an instant that cannot be, StoreUnavailable while storage is away.
        """
        if not counters:
            return Taken(0, ())
        names = sorted({one.backing_topic for one in counters})
        with self._store.transaction() as tx:
            now = to_ms(database_now(tx))
            for one in counters:
                _check(f"the sample of {one.backing_topic}", one.instant_ms, now)
            sent_at = max(one.instant_ms for one in counters) if sent_at_ms is None else sent_at_ms
            _check("the request", sent_at, now)
            reader = readers.seen(tx, source, Ahead(sent_at - now, 0), clock_ahead_ms=sent_at - now)
            watched = {
                one.backing_topic: one
                for one in watched_logs.watched_logs(
                    tx, sealed_for_seconds=watched_logs.SEALED_FOR_SECONDS, logs=names
                )
            }
        samples = [
            Sample(
                watched[one.backing_topic].topic_id,
                watched[one.backing_topic].segment_id,
                one.backing_topic,
                source,
                reader.name,
                one.instant_ms - reader.ahead_ms,
                one.msg_in,
                one.byte_in,
                one.msg_out,
                one.byte_out,
            )
            for one in counters
            if one.backing_topic in watched
        ]
        if samples:
            try:
                self._area.append(now, f"intake-{secrets.token_hex(6)}", sample_table(samples))
            except OSError as error:
                raise StoreUnavailable(f"the landing area is away: {error}", 10.0) from error
        return Taken(len(samples), tuple(name for name in names if name not in watched))


def _check(what: str, instant_ms: int, now: int) -> None:
    if not now - OLDEST_MS <= instant_ms <= now + LATEST_MS:
        raise InvalidInput(f"{what} is from {instant_ms} ms, and here it is {now} ms; set the clocks right")
