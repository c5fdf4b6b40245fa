"""Load intake: lands counter samples that brokers send themselves, where no collector reads them.

The samples count like those of a collector. A sample must belong to a watched log; samples of other logs are
left out, and the result names them. Instants are landed in the time of the database, corrected by how far the
source's clock was ahead when it sent the samples.
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
"""Maximum milliseconds by which a sample may be ahead of the database's clock, or behind it."""


@dataclass(frozen=True, slots=True)
class IntakeResult:
    """Number of samples written, and the reported logs that are not watched."""

    landed: int
    unknown: tuple[str, ...]


def take(
    store: Store, area: LandingArea, source: str, counters: Sequence[Counters], sent_at_ms: int | None = None
) -> IntakeResult:
    """Land the counters that a source reports. `sent_at_ms` is a time of the clock that stamped the
    counters; None stands for the latest instant of the counters.

    Raises InvalidInput for an instant out of bounds, StoreUnavailable if storage is unavailable.
    """
    if not counters:
        return IntakeResult(0, ())
    names = sorted({sample.backing_topic for sample in counters})
    with store.transaction() as tx:
        now = to_ms(database_now(tx))
        for sample in counters:
            _check(f"the sample of {sample.backing_topic}", sample.instant_ms, now)
        sent_at = max(sample.instant_ms for sample in counters) if sent_at_ms is None else sent_at_ms
        _check("the request", sent_at, now)
        reader = readers.seen(tx, source, Ahead(sent_at - now, 0), clock_ahead_ms=sent_at - now)
        watched = {
            log.backing_topic: log
            for log in watched_logs.watched_logs(
                tx, sealed_for_seconds=watched_logs.SEALED_FOR_SECONDS, logs=names
            )
        }
    samples = [
        Sample(
            watched[sample.backing_topic].topic_id,
            watched[sample.backing_topic].segment_id,
            sample.backing_topic,
            source,
            reader.name,
            sample.instant_ms - reader.ahead_ms,
            sample.msg_in,
            sample.byte_in,
            sample.msg_out,
            sample.byte_out,
        )
        for sample in counters
        if sample.backing_topic in watched
    ]
    if samples:
        try:
            area.append(now, f"intake-{secrets.token_hex(6)}", sample_table(samples))
        except OSError as error:
            raise StoreUnavailable(f"the landing area is unavailable: {error}", 10.0) from error
    return IntakeResult(len(samples), tuple(name for name in names if name not in watched))


def _check(subject: str, instant_ms: int, now: int) -> None:
    if not now - OLDEST_MS <= instant_ms <= now + LATEST_MS:
        raise InvalidInput(
            f"{subject} is from {instant_ms} ms, but the database's clock shows {now} ms; synchronize the clocks"
        )
