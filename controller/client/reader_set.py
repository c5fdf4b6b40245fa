"""Holds the readers of one consumer's logs: queries and closes them in background threads, and reads in rotation."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Generic, TypeGuard, TypeVar

from controller.client.broken_log_reports import SuspectReports
from controller.client.reader_slot import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, ReaderSlot
from controller.client.reader_threads import ReaderThreads
from controller.client.retry import Backoff
from controller.dataplane.log_client import LogMessage, LogReader, PositionReader
from controller.domain.errors import CleaveError, DataPlaneUnavailable, StoreUnavailable, Terminal

LOOK_SECONDS = 1.0
"""Longest time between two polls of the logs, even without a signal."""
WAITS_FOR_RECEIVE = "waits for the next `receive`"
"""The reason reported for a segment that may have messages. Only the next poll shows if it has any."""
Slot = TypeVar("Slot", bound=ReaderSlot[Any])


@dataclass(frozen=True, slots=True)
class Reading:
    """Messages that were read.

    `is_end` is True if no message can follow. `unanswered` is the error if the log could not be queried for
    its end; there are no messages then.
    """

    messages: Sequence[LogMessage]
    is_end: bool = False
    unanswered: DataPlaneUnavailable | None = None


class ReaderSet(Generic[Slot]):
    """The slots of one consumer by their `key`. For one thread at a time, except `all`."""

    _awaited: ClassVar[tuple[type[CleaveError], ...]] = ()
    """Errors of a log for which the consumer waits, so that `demand_reached` does not raise them."""

    def __init__(
        self, open_one: Callable[[Slot], Any], suspects: SuspectReports, on_closed: Callable[[], None]
    ) -> None:
        """Create the set without slots. `open_one` is called in a background thread with a slot, and returns the open
        reader of its log. `on_closed` is called, in any thread, when a slot was closed. `suspects` receives reports of
        missing logs, and is closed together with this object.
        """
        self._open_one, self._suspects = open_one, suspects
        self._threads = ReaderThreads(on_closed)
        self._slots: dict[Any, Slot] = {}
        self._backoffs: dict[Hashable, Backoff] = {}
        """The delay before a lost log is opened again, by place, until it works."""
        self._poll_at = 0.0
        self._last: Any = None
        """The key of the slot that was reached last in the rotation."""

    @property
    def all(self) -> tuple[Slot, ...]:
        """Every slot in the set, in the order of the keys. For any thread."""
        return tuple(slot for _, slot in sorted([*self._slots.items()], key=itemgetter(0)))

    @property
    def next_try_at(self) -> float:
        """The earliest time of the next attempt to open a log, in `time.monotonic` seconds. Infinity if no
        log waits.
        """
        waiting = [slot.next_try_at for slot in [*self._slots.values()] if slot.is_waiting]
        return min(waiting, default=float("inf"))

    @property
    def due_at(self) -> float:
        """The time of the next work without a signal, in `time.monotonic` seconds: a retry, or the next poll
        of all logs.
        """
        return min(self._poll_at, self.next_try_at)

    def open_due(self) -> None:
        """Begin to open the readers that are due, in background threads."""
        for slot in self._slots.values():
            self._threads.open(slot, partial(self._open_one, slot))

    def ask(self, slot: Slot, question: Callable[[], Any]) -> None:
        """Run `question` in a background thread; `ReaderSlot.take_result` returns the result."""
        self._threads.ask(slot, question)

    def read_or_ask(
        self, slot: Slot, reader: LogReader | PositionReader, limit: int, is_over: Callable[[], bool] | None
    ) -> Reading | None:
        """Return the result of a finished query of the slot's log; otherwise read the next messages, at most `limit`.
        Begin instead a query in a background thread, and return None, in two cases: the read may block; or there is no
        message, and `is_over` is given, which asks the log whether no message can follow. A later call returns the
        result of the query. Without `is_over` the end is never reported.

        Only the log's own response shows its end. Raises the errors of the reader's `read`, and those of `is_over`
        except DataPlaneUnavailable.
        """
        finished: Reading | None = slot.take_result()
        if finished is not None:
            return finished
        slot.signal.clear()
        is_far = reader.may_wait()
        messages = () if is_far else reader.read(limit)
        if messages or not (is_far or is_over):
            return Reading(messages)

        def ask() -> Reading:
            messages = reader.read(limit) if is_far else ()
            try:
                return Reading(messages, not messages and is_over is not None and is_over())
            except DataPlaneUnavailable as error:
                return Reading(messages, unanswered=error)

        self.ask(slot, ask)
        return None

    def with_new_messages(self) -> Iterator[tuple[Slot, Any]]:
        """Yield the slots that may be read (`ReaderSlot.is_readable`), with their open readers, each at most once. The
        order is ascending by key, and begins behind the slot that was reached last, so that all slots get their turn.
        The caller stops iterating when it has a message.
        """
        keys = sorted(self._slots)
        following = 0 if self._last is None else bisect_right(keys, self._last)
        for key in keys[following:] + keys[:following]:
            self._last = key
            slot = self._slots.get(key)
            if slot is not None and slot.is_readable:
                reader = slot.reader
                if reader is not None:
                    yield slot, reader

    def signal_all_if_due(self) -> bool:
        """Make every reader read once, even without a notification of its log, unless a call did so in the last
        LOOK_SECONDS. Return True if this call did so, otherwise False.
        """
        if time.monotonic() < self._poll_at:
            return False
        self._poll_at = time.monotonic() + LOOK_SECONDS
        for slot in self._slots.values():
            slot.signal.set()
        return True

    def holds(self, slot: object) -> TypeGuard[Slot]:
        """Return True if this very slot is in the set."""
        return isinstance(slot, ReaderSlot) and self._slots.get(slot.key) is slot

    def demand_reached(self) -> None:
        """Raise the error of a log that was out of reach at the last attempt, or that can never be read:
        DataPlaneUnavailable, StoreUnavailable or Terminal, but none of `_awaited`.
        """
        for slot in self._slots.values():
            error = slot.error
            is_raised = not isinstance(error, self._awaited)
            if is_raised and isinstance(error, DataPlaneUnavailable | StoreUnavailable | Terminal):
                # otherwise the traceback would grow with each raise
                raise error.with_traceback(None)

    def settled(self, slot: Slot) -> None:
        """Reset the delay of the slot's place, because reading it works."""
        self._backoffs.pop(slot.place, None)

    def stop_all(self) -> None:
        """Remove all slots, and close them in background threads."""
        for slot in [*self._slots.values()]:
            self._stop(slot)

    def close(self) -> None:
        """Close all slots, and the object that reports missing logs. Waits, without a limit, for openings, queries and
        closes in progress, because threads must end before the process does. Nothing is opened afterwards.
        """
        self.stop_all()
        self._threads.close()
        self._suspects.close()

    def _backoff(self, place: Hashable) -> Backoff:
        """Return the delay before the log of the place is opened again, which begins with the first loss."""
        return self._backoffs.setdefault(place, Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS))

    def _stop(self, slot: Slot) -> None:
        """Remove the slot, if it is still in the set, and close it in a background thread."""
        if self.holds(slot):
            del self._slots[slot.key]
        self._threads.stop(slot)
