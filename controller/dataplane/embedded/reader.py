"""Reads one embedded log for one subscription, as the owner of its cursor, or of a part of it, for one
generation.

A cursor is divided into parts by bucket hash, each with its own position
(sql/schema/82_embedded_cursors.sql). A reader holds all parts within its range, or none. Each statement
carries the generation, so a reader that lost a part, or whose cursor was moved by hand, gets an error from
its next call and can neither read nor acknowledge. Each statement also names the last message below the
reader's place, and a log that lacks that message refuses the statement (`timelines`). Not for use by two
threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from controller.clock import to_ms
from controller.dataplane.embedded.metadata import read as metadata_of
from controller.dataplane.embedded.names import no_cursor
from controller.dataplane.embedded.timelines import Place, Timelines, demand_present
from controller.dataplane.log_client import LogMessage, Position
from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import CleaveError, FencedOut, InvalidInput, LostRace
from controller.domain.hash_range import HashRange
from controller.domain.whole_numbers import whole
from controller.forks import OneProcess

MAX_READ_BYTES = 8 * 1024 * 1024
"""Size limit of one read. A read ends before the message that would exceed the limit, but returns at least
one message.
"""
MAX_SCANNED = 10_000
"""Number of offsets that one read checks for messages of its bucket, unless its limit is higher. Takes some
tens of milliseconds.
"""
IDLE_LAG = 1_000
"""Number of messages of other buckets after which a reader without messages moves its position, so that the
log can be trimmed and the bucket's next reader need not check them again. A lower number would cause more
writes.
"""

_READ = """
SELECT log_offset, published_at, key, payload, metadata::text, timelines
  FROM embedded.read(%s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_ACKNOWLEDGE = "SELECT embedded.acknowledge(%s, %s, %s, %s, %s, %s, %s)"
_LOOK = "SELECT is_terminated, all_settled FROM embedded.look(%s, %s, %s)"
_RELEASE = "SELECT embedded.release(%s, %s, %s)"
_OWNERS = "SELECT owner FROM embedded.owners(%s, %s, %s, %s) AS part (owner)"


class EmbeddedReader(OneProcess):
    """A `LogReader`: the only reader of a log, or of one bucket of it, for a subscription. Created by
    `EmbeddedLogClient.open_reader`.

    Messages are in the log's order. If the parts of a whole cursor had several readers, the cursor is read
    from its lowest position, without the messages that those readers acknowledged.

    Calls except `close` and `may_wait` raise LostRace if this reader no longer has the cursor, FencedOut if a
    later reader of the same owner has a part of it, and SubscriptionNotFound if the log or the cursor was
    deleted. `read` and `acknowledge` raise LogShortened if the log lacks the last message before the place at
    which they read, or up to which they acknowledge; `is_drained` does so only if it scans.
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
        """Create a reader that begins at `place` in the log `log_id`; nothing is read yet. The reader holds the parts
        of the subscription's cursor that `embedded.take` gave to `owner` under `generation`, a number that identifies
        this one taking. `bucket` is the range of bucket hashes (`KeyHash.bucket_hash`) of these parts.

        `on_arrival` is called by a `read` that skips `MAX_SCANNED` messages or more and returns none, because
        messages may follow. `on_close` is called once, by `close`.
        """
        self._calls = calls
        self._backing_topic, self._subscription, self._owner = backing_topic, subscription, owner
        self._bucket = bucket
        self._held = (log_id, subscription, generation)
        self._place = place
        self._delivered: Position = (-1, -1)  # of the last delivered message
        self._acknowledged: Position = (-1, -1)  # of the highest acknowledged message
        self._unreported = [0, 0]  # messages and bytes delivered since the last acknowledgement
        self._on_arrival, self._on_close = on_arrival, on_close
        self._closed = False

    def may_wait(self) -> bool:
        """Return False: each read is a call, but to the one server that has all logs, so a background thread
        would not help.
        """
        return False

    def read(self, limit: int) -> Sequence[LogMessage]:
        """Return the next messages of this reader in order. The result has at most `limit` messages, at most 10,000,
        and about 8 MiB, but at least one message if one is found. The next call continues behind these messages. The
        result is empty if there are no messages at present.

        One call checks the next `MAX_SCANNED` messages of the log, or the next `limit` messages (up to 100,000) if
        `limit` is higher. The result is also empty if none of them is for this reader, because they belong to other
        buckets or an earlier reader acknowledged them. In this case `on_arrival` is called if at least `MAX_SCANNED`
        were checked, and the next call continues behind the checked messages.

        If the result is empty, all delivered messages are acknowledged, and more than `IDLE_LAG` messages were
        skipped, the skipped messages are acknowledged. Raises InvalidInput for a limit below 1, and the errors of the
        class.
        """
        whole(limit, "read limit", 1)
        first_offset = self._place.offset
        messages = self._scan(limit, MAX_READ_BYTES, IDLE_LAG)
        if messages:
            self._delivered = messages[-1].position
            self._unreported[0] += len(messages)
            self._unreported[1] += sum(len(m.payload) + len(m.key or b"") for m in messages)
        elif self._place.offset - first_offset >= MAX_SCANNED:
            self._on_arrival()
        return messages

    def acknowledge(self, position: Position) -> None:
        """Acknowledge all messages of this reader up to and including `position`. For a position below an
        acknowledged one, nothing is acknowledged. Once all delivered messages are acknowledged, the messages of other
        buckets that the reader skipped behind them count as acknowledged too.

        The call also adds the messages and bytes that were delivered since the last successful call to the cursor's
        counters. Raises InvalidInput for a position beyond the messages that were read or skipped; the errors of the
        class; DataPlaneUnavailable; and DataPlaneTimeout.
        """
        timeline, offset = position
        if position > self._place.last:
            raise InvalidInput(
                f"{self._backing_topic}: offset {offset} was not read yet (next is {self._place.offset}); "
                "acknowledge what was read"
            )
        upto = self._place if position >= self._delivered else Place(offset + 1, timeline)
        parameters = (*self._held, upto.offset, *self._unreported, upto.timeline)
        ((is_held,),) = self._calls.rows(f"acknowledge {self._backing_topic}", _ACKNOWLEDGE, parameters)
        if not is_held:
            self._demand_history(upto)
            raise self._lost()
        self._acknowledged = max(self._acknowledged, position)
        self._unreported = [0, 0]

    def is_drained(self) -> bool:
        """Return True if the log is terminated and every part of the cursor, also the parts of other readers, is
        acknowledged to the end of the log.

        The rest of the log may contain only messages of other buckets. So if the log is terminated and this reader
        has acknowledged all messages that it delivered, the call scans the next `MAX_SCANNED` offsets. Scanned
        offsets without a message of this reader count as acknowledged, and the next call continues behind them. A
        message of this reader that the scan finds makes the result False, and the next `read` returns the message.
        Raises the errors of the class, DataPlaneUnavailable and DataPlaneTimeout.
        """
        is_terminated, all_settled = self._read_state()
        if not is_terminated or all_settled or not self._is_settled:
            return is_terminated and all_settled
        place = self._place
        if self._scan(1, 0, 0):
            self._place = place  # the message is read and delivered later
            return False
        _, all_settled = self._read_state()
        return all_settled

    def close(self) -> None:
        """Release the cursor, or the parts of the cursor that this reader has. Unacknowledged messages are delivered
        to the next reader. Further calls do nothing. Raises nothing: if the call to the server fails, the server
        shows this reader as the owner until another reader takes the cursor, or the cursor is moved.
        """
        if self._closed:
            return
        self._closed = True
        self._on_close()
        with suppress(CleaveError):
            self._calls.rows(f"release {self._backing_topic}", _RELEASE, self._held)

    @property
    def _is_settled(self) -> bool:
        """True if all delivered messages are acknowledged."""
        return self._acknowledged >= self._delivered

    def _scan(self, limit: int, max_bytes: int, lag: int) -> list[LogMessage]:
        """Return this reader's next messages, at most `limit` (up to 10,000), and move `_place` behind the last
        offset that was checked. The messages have at most `max_bytes`, unless the first one alone is larger. One call
        checks at most `MAX_SCANNED` offsets, or `limit` offsets (up to 100,000) if that is more.

        If no message is found and all delivered messages are acknowledged, a stored position that is more than `lag`
        offsets behind `_place` is moved to `_place`. Raises LogShortened if the log lacks the message before
        `_place`, as after a restore; otherwise, if this reader has lost the cursor, SubscriptionNotFound, FencedOut
        or LostRace (`_lost`).
        """
        parameters = (
            *self._held,
            self._place.offset,
            limit,
            max_bytes,
            max(limit, MAX_SCANNED),
            lag if self._is_settled else None,
            self._place.timeline,
        )
        rows = self._calls.rows(f"read {self._backing_topic}", _READ, parameters)
        if not rows:
            self._demand_history(self._place)
            raise self._lost()
        *message_rows, (scanned, *_, timelines) = rows
        position = Timelines(timelines).position
        if scanned > self._place.offset:
            self._place = Place(scanned, position(scanned - 1)[0])
        return [message(position(at), *row) for at, *row, _ in message_rows]

    def _read_state(self) -> tuple[bool, bool]:
        """Return two values: True if the log is terminated, and True if all parts of the cursor, including
        those of other readers, are acknowledged to the end of the log. Raises the error of `_lost` if this
        reader no longer has the cursor.
        """
        rows: list[tuple[bool, bool]] = self._calls.rows(f"check {self._backing_topic}", _LOOK, self._held)
        if not rows:
            raise self._lost()
        return rows[0]

    def _demand_history(self, place: Place) -> None:
        """Raise LogShortened, and count and log it, if the log lacks the message before the place."""
        log_id, subscription, _ = self._held
        demand_present(self._calls, self._backing_topic, log_id, subscription, place, self._bucket)

    def _lost(self) -> CleaveError:
        """Return, without raising it, the error that says why this reader has lost the cursor: SubscriptionNotFound
        if there is no log or no cursor; FencedOut if a reader of the same owner name has a part of the bucket;
        otherwise LostRace, whose message names the owners of the bucket's parts (None: a part without an owner). Asks
        the server; raises DataPlaneUnavailable and DataPlaneTimeout.
        """
        log_id, subscription, _ = self._held
        parameters = (log_id, subscription, self._bucket.start, self._bucket.end)
        owners = [owner for (owner,) in self._calls.rows(f"check {self._backing_topic}", _OWNERS, parameters)]
        if not owners:
            return no_cursor(self._backing_topic, subscription)
        if self._owner in owners:
            return FencedOut(
                f"{self._backing_topic}: a newer reader named {self._owner!r} has the cursor; this one is "
                "stale and must stop"
            )
        new_owners = ", ".join(repr(owner) for owner in dict.fromkeys(owners))
        return LostRace(
            f"{self._backing_topic}: the cursor of {subscription!r} was taken or moved (owner: {new_owners}); "
            "open a new reader",
            delay_seconds=0.0,
        )


def message(
    position: Position, when: datetime, key: Any, payload: Any, metadata: str | None, deliveries: int = 1
) -> LogMessage:
    """Return the message at `position`, with the columns of a row: `published_at`, `key`, `payload` and
    `metadata` of `embedded.message`, the last as text, and the number of deliveries.
    """
    read_key = None if key is None else bytes(key)
    return LogMessage(position, to_ms(when), read_key, bytes(payload), deliveries, metadata_of(metadata))
