"""Closes clients: at the end of a `with` block, and a consumer within a time limit, part of which is reserved
for deregistration.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from controller.domain.errors import InvalidInput

_log = logging.getLogger(__name__)
CLOSE_SECONDS = 30.0
"""Time limit for closing a consumer if the application gives none."""
MOST_CLOSE_SECONDS = 86_400
GOODBYE_SHARE = 0.2
"""Part of the time limit that is reserved for deregistration."""
LEAST_SECONDS = 1.0
"""Minimum time for closing the readers, and minimum time for deregistration, however short the time limit."""


class Closable(Protocol):
    """An object with a method `close` that raises nothing."""

    def close(self) -> None: ...


def closed(kind: str) -> InvalidInput:
    """Return the error of a call that comes after `close`. `kind` is the name of the public class."""
    return InvalidInput(f"{kind} was closed; make another one")


class ClosedByWith(ABC):
    """A class for use in a `with` block. The end of the block calls `close`, also after an error."""

    _is_closed = False
    """True once `close` was called."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the object."""

    def __enter__(self) -> Self:
        self._demand_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _kind(self) -> str:
        """Return the name of the public class."""
        return type(self).__name__

    def _demand_open(self) -> None:
        """Raise InvalidInput after `close`."""
        if self._is_closed:
            raise closed(self._kind())

    def _begin_close(self, timeout_seconds: float | None) -> CloseTime:
        """Refuse further calls, and return the time limit of the close. Raises InvalidInput for an invalid
        time, and then refuses no call.
        """
        timing = CloseTime(timeout_seconds)
        self._is_closed = True
        return timing


class StoredByWith(ABC):
    """A class for use in a `with` block. The end of the block stores the sent messages; after an error the
    block drops them.
    """

    @abstractmethod
    def close(self, *, flush: bool = True) -> None:
        """Store what was sent if `flush` is True, then close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(flush=kind is None)


class CloseTime:
    """The time limit of one close, counted from the creation of this object."""

    def __init__(self, timeout_seconds: float | None) -> None:
        """Use CLOSE_SECONDS if `timeout_seconds` is None. Raises InvalidInput."""
        timeout_seconds = CLOSE_SECONDS if timeout_seconds is None else timeout_seconds
        if not 0 <= timeout_seconds <= MOST_CLOSE_SECONDS:
            raise InvalidInput(
                f"timeout_seconds is {timeout_seconds:g}; give 0 or more, and at most {MOST_CLOSE_SECONDS}"
            )
        self.goodbye_seconds = max(GOODBYE_SHARE * timeout_seconds, LEAST_SECONDS)
        """Time reserved for deregistration."""
        self._closed_at = time.monotonic() + max(timeout_seconds - self.goodbye_seconds, LEAST_SECONDS)

    @property
    def left_seconds(self) -> float:
        """Time that remains for everything before deregistration."""
        return max(0.0, self._closed_at - time.monotonic())


def close_and_deregister(
    what: str, timing: CloseTime, close: Callable[[], None], goodbye: Callable[[float], None]
) -> None:
    """Run `close` for as long as the time limit allows, then `goodbye`, which receives its own time limit in
    seconds.

    `what` names the consumer in the log. If `close` exceeds its time, it continues in a background thread.
    `goodbye` runs whatever the outcome of `close`, also after an interruption of this thread:
    KeyboardInterrupt, or an exception of a signal handler. The interruption is raised at the end.
    """
    try:
        if not _finishes_within(close, timing.left_seconds):
            _log.warning("%s: readers not closed in time; closing continues during deregistration", what)
    finally:
        _run_despite_interruptions(lambda: goodbye(timing.goodbye_seconds), timing.goodbye_seconds)


def _finishes_within(act: Callable[[], None], seconds: float) -> bool:
    """Run `act` in a background thread that the process waits for, and return True if it ended within
    `seconds`. Raises the error of `act`.
    """
    ended, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises the error
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="cleave-close").start()
    is_ended = ended.wait(seconds)
    if errors:
        raise errors[0]
    return is_ended


def _run_despite_interruptions(act: Callable[[], None], seconds: float) -> None:
    """Run `act` in a background thread, and wait for it up to `seconds`, even if this thread is interrupted.
    The process does not wait for the thread.
    """
    ended, until = threading.Event(), time.monotonic() + seconds
    turn = threading.Lock()

    def run() -> None:
        # the thread was started twice, because the first start was interrupted
        if not turn.acquire(blocking=False):
            return
        try:
            act()
        except Exception:  # noqa: BLE001 - no thread waits for `act` once its time is over
            _log.exception("deregistration failed")
        finally:
            ended.set()

    interruption: BaseException | None = None
    is_begun = False
    while not ended.is_set() and (remaining_seconds := until - time.monotonic()) > 0:
        try:
            if not is_begun:
                threading.Thread(target=run, name="cleave-goodbye", daemon=True).start()
                is_begun = True
            ended.wait(remaining_seconds)
        except BaseException as error:  # noqa: BLE001 - raised below
            interruption = error
    if interruption is not None:
        raise interruption
