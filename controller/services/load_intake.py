"""Load intake: writes counter samples that brokers send themselves, for topics that no collector reads, to the
landing area.

The samples count like those of a collector. A sample must belong to a watched log; samples of other logs are
left out, and the result names these logs. Instants are stored in the time of the database, corrected by the
offset of the source's clock, which is measured at the first request and again after the clock was set.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from controller.clock import to_ms
from controller.dataplane.base import Counters
from controller.domain.errors import InvalidInput, StoreUnavailable
from controller.landing.area import LandingArea
from controller.landing.schemas import Sample, sample_table
from controller.store.load import counter_readers
from controller.store.postgres.clock import Ahead, database_now
from controller.store.postgres.engine import Store
from controller.store.topics import watched_logs

MAX_AHEAD_MS, MAX_AGE_MS = 60_000, 3_600_000
"""Maximum milliseconds by which a sample may be ahead of the database's clock, or behind it."""


def take(
    store: Store, area: LandingArea, source: str, counters: Sequence[Counters], sent_at_ms: int | None
) -> tuple[int, list[str]]:
    """Write the samples of watched logs to the landing area as one file. Return the number of samples written,
    and the sorted names of the reported logs that are not watched, whose samples are left out. A log is watched if its
    topic is live, and its segment is ACTIVE or was sealed less than `watched_logs.SEALED_FOR_SECONDS` ago. The
    instants are corrected by the offset of the source's clock to the database's. `sent_at_ms` is the time of the
    request by the clock that stamped the samples; None stands for the latest instant of the samples. The source
    is recorded as a reader with its clock, even if no log is watched. Does nothing without samples.

    Raises InvalidInput if an instant of a sample, or `sent_at_ms`, is more than `MAX_AHEAD_MS` after or
    `MAX_AGE_MS` before the database's time; nothing is then written. Raises StoreUnavailable if the database or
    the landing area is unavailable. If the landing area is unavailable, the record of the source stays. The name
    `source` and the values of the counters are not checked here.
    """
    if not counters:
        return 0, []
    names = sorted({sample.backing_topic for sample in counters})
    with store.transaction() as tx:
        now_ms = to_ms(database_now(tx))
        for sample in counters:
            _check(f"the sample of {sample.backing_topic}", sample.instant_ms, now_ms)
        sent_ms = max(sample.instant_ms for sample in counters) if sent_at_ms is None else sent_at_ms
        _check("the request", sent_ms, now_ms)
        reader = counter_readers.record(
            tx, source, Ahead(sent_ms - now_ms, 0), clock_ahead_ms=sent_ms - now_ms
        )
        watched_by_name = {
            log.backing_topic: log
            for log in watched_logs.watched_logs(
                tx, sealed_for_seconds=watched_logs.SEALED_FOR_SECONDS, logs=names
            )
        }
    landed_samples = [
        Sample(
            watched_by_name[sample.backing_topic].topic_id,
            watched_by_name[sample.backing_topic].segment_id,
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
        if sample.backing_topic in watched_by_name
    ]
    if landed_samples:
        try:
            area.append(now_ms, f"intake-{secrets.token_hex(6)}", sample_table(landed_samples))
        except OSError as error:
            raise StoreUnavailable(f"the landing area is unavailable: {error}", 10.0) from error
    return len(landed_samples), [name for name in names if name not in watched_by_name]


def _check(subject: str, instant_ms: int, now_ms: int) -> None:
    """Raise InvalidInput unless the instant is at most `MAX_AHEAD_MS` after and `MAX_AGE_MS` before `now_ms`."""
    if not now_ms - MAX_AGE_MS <= instant_ms <= now_ms + MAX_AHEAD_MS:
        raise InvalidInput(
            f"{subject} is from {instant_ms} ms, but the database's clock shows {now_ms} ms; synchronize the clocks"
        )
