"""Reading one embedded log for one subscription, as the owner of its cursor, or of a part of it, for one generation.

A cursor is in parts by bucket hash, each with a position of its own (sql/schema/82_embedded_cursors.sql says how they are kept). A reader
holds those within its range, all or none. Each statement carries the generation, so a reader that lost one of them, or
whose cursor was moved by hand, learns it from its next call and can neither read on nor acknowledge. Each statement also
names the last message below the reader's place, and a log that does not have that message refuses the statement
(`timelines`). Not for use by two threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.dataplane.base import LogMessage, Position
from controller.dataplane.embedded.metadata import read as metadata_of
from controller.dataplane.embedded.names import no_cursor
from controller.dataplane.embedded.timelines import Place, Timelines, demand_there
from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import CleaveError, FencedOut, InvalidInput, LostRace
from controller.domain.hash_range import HashRange
from controller.forks import OneProcess

MAX_READ_BYTES = 8 * 1024 * 1024
"""A read stops before the message that would take it beyond this, but always gives one."""
MAX_SCANNED = 10_000
"""Offsets that one read looks at for messages of its bucket, unless it may give more: some tens of milliseconds."""
IDLE_LAG = 1_000
"""A reader that finds nothing in so many messages of other buckets moves its position, so that the log can be trimmed
and whoever reads the bucket next need not look at them again. Below that it saves the write.
"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

_READ = """
SELECT log_offset, published_at, key, payload, metadata, timelines FROM embedded.read(%s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_ACKNOWLEDGE = "SELECT embedded.acknowledge(%s, %s, %s, %s, %s, %s, %s)"
_LOOK = "SELECT is_terminated, all_settled FROM embedded.look(%s, %s, %s)"
_RELEASE = "SELECT embedded.release(%s, %s, %s)"
_OWNERS = "SELECT owner FROM embedded.owners(%s, %s, %s, %s) AS part (owner)"


class EmbeddedReader(OneProcess):
    """A `LogReader`; `EmbeddedLogClient.open_reader` makes it.

    Messages come in the log's order. A whole cursor whose parts had readers of their own is read from its lowest
    position on, without what they acknowledged.
    """

    def __init__(
        self,
        calls: PostgresCalls,
        *,
        backing_topic: str,
        subscription: str,
        owner: str,
        bucket: HashRange,
        log_id: int,
        generation: int,
        place: Place,
        on_arrival: Callable[[], None],
        on_close: Callable[[], None],
    ) -> None:
        self._calls = calls
        self._backing_topic, self._subscription, self._owner = backing_topic, subscription, owner
        self._bucket = bucket
        self._held = (log_id, subscription, generation)
        self._place = place
        self._delivered: Position = (-1, -1)  # of the last message given out
        self._acknowledged: Position = (-1, -1)  # the highest
        self._unreported = [0, 0]  # messages and bytes delivered since the last acknowledgement
        self._on_arrival, self._on_close = on_arrival, on_close
        self._closed = False

    def may_wait(self) -> bool:
        """Never: each read is a call to the server that has all logs."""
        return False

    def read(self, limit: int) -> Sequence[LogMessage]:
        """The next messages in order, at most `limit` and some 8 MiB; empty when there is none now.

        It is empty too when none of the next `MAX_SCANNED` messages is of this bucket. Then `on_arrival` is called,
        from here, and the next read goes on behind them.
        """
        if limit < 1:
            raise InvalidInput(f"read limit {limit}: ask for 1 message or more")
        began = self._place.offset
        messages = self._scan(limit, MAX_READ_BYTES, IDLE_LAG)
        if messages:
            self._delivered = messages[-1].position
            self._unreported[0] += len(messages)
            self._unreported[1] += sum(len(m.payload) + len(m.key or b"") for m in messages)
        elif self._place.offset - began >= MAX_SCANNED:
            self._on_arrival()
        return messages

    def acknowledge(self, position: Position) -> None:
        """Acknowledge everything up to and including `position`; it also reports what was delivered.

        Once all that was delivered is acknowledged, so is what was passed over since: it belongs to others.
        """
        timeline, offset = position
        if position > self._place.last:
            raise InvalidInput(
                f"{self._backing_topic}: offset {offset} was not read yet (next is {self._place.offset}); "
                "acknowledge what was read"
            )
        upto = self._place if position >= self._delivered else Place(offset + 1, timeline)
        with self._calls.statement(f"acknowledge {self._backing_topic}") as cursor:
            cursor.execute(_ACKNOWLEDGE, (*self._held, upto.offset, *self._unreported, upto.timeline))
            ((is_held,),) = cursor.fetchall()
        if not is_held:
            self._demand_there(upto)
            raise self._lost()
        self._acknowledged = max(self._acknowledged, position)
        self._unreported = [0, 0]

    def is_drained(self) -> bool:
        """Whether the log is terminated and acknowledged to its end, in every part of the cursor.

        A reader that has nothing left to settle looks through the rest of a terminated log first, `MAX_SCANNED`
        offsets a call: none of it may be its own.
        """
        is_terminated, all_settled = self._look()
        if not is_terminated or all_settled or not self._is_settled:
            return is_terminated and all_settled
        place = self._place
        if self._scan(1, 0, 0):
            self._place = place  # the message is read again, and delivered then
            return False
        _, all_settled = self._look()
        return all_settled

    def close(self) -> None:
        """Let go of the cursor. If that fails, the next owner finds this one gone and cuts it off."""
        if self._closed:
            return
        self._closed = True
        self._on_close()
        with suppress(CleaveError), self._calls.statement(f"let go of {self._backing_topic}") as cursor:
            cursor.execute(_RELEASE, self._held)

    @property
    def _is_settled(self) -> bool:
        """Whether everything delivered is acknowledged."""
        return self._acknowledged >= self._delivered

    def _scan(self, limit: int, most_bytes: int, lag: int) -> list[LogMessage]:
        """Move the place on, and return this reader's messages up to there.

        Where it finds none and nothing is unsettled, a position that is more than `lag` behind moves there.
        """
        with self._calls.statement(f"read {self._backing_topic}") as cursor:
            cursor.execute(
                _READ,
                (
                    *self._held,
                    self._place.offset,
                    limit,
                    most_bytes,
                    max(limit, MAX_SCANNED),
                    lag if self._is_settled else None,
                    self._place.timeline,
                ),
            )
            rows = cursor.fetchall()
        if not rows:
            self._demand_there(self._place)
            raise self._lost()
        *found, (scanned, *_, timelines) = rows
        position = Timelines(timelines).position
        if scanned > self._place.offset:
            self._place = Place(scanned, position(scanned - 1)[0])
        return [message(position(at), *row) for at, *row, _ in found]

    def _look(self) -> tuple[bool, bool]:
        """Whether the log is terminated, and whether all parts are acknowledged to its end."""
        with self._calls.statement(f"look at {self._backing_topic}") as cursor:
            cursor.execute(_LOOK, self._held)
            row: tuple[bool, bool] | None = cursor.fetchone()
        if row is None:
            raise self._lost()
        return row

    def _demand_there(self, place: Place) -> None:
        """Raise LogShortened if the log does not have the message before the place."""
        log_id, subscription, _ = self._held
        demand_there(self._calls, self._backing_topic, log_id, subscription, place, self._bucket)

    def _lost(self) -> CleaveError:
        """The error that says who took the cursor, or what became of it."""
        log_id, subscription, _ = self._held
        with self._calls.statement(f"look at {self._backing_topic}") as cursor:
            cursor.execute(_OWNERS, (log_id, subscription, self._bucket.start, self._bucket.end))
            owners = [owner for (owner,) in cursor.fetchall()]
        if not owners:
            return no_cursor(self._backing_topic, subscription)
        if self._owner in owners:
            return FencedOut(
                f"{self._backing_topic}: a newer reader named {self._owner!r} has the cursor; this one is "
                "stale and must stop"
            )
        now = ", ".join(repr(owner) for owner in dict.fromkeys(owners))
        return LostRace(
            f"{self._backing_topic}: the cursor of {subscription!r} moved on (owner now {now}); "
            "open a new reader",
            delay_seconds=0.0,
        )


def message(
    position: Position, when: datetime, key: Any, payload: Any, metadata: object, deliveries: int = 1
) -> LogMessage:
    """Return a message from the columns of its row."""
    read_key = None if key is None else bytes(key)
    return LogMessage(
        position, milliseconds(when), read_key, bytes(payload), deliveries, metadata_of(metadata)
    )


def milliseconds(when: datetime) -> int:
    """Since the Unix epoch."""
    return (when - _EPOCH) // _MILLISECOND
