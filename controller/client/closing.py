"""Closing: at the end of a `with` block, and a consumer within its time, of which a share is the goodbye's alone."""

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
"""What a consumer's close may take where the application does not say."""
MOST_CLOSE_SECONDS = 86_400
GOODBYE_SHARE = 0.2
"""The part of that which is kept for the goodbye."""
LEAST_SECONDS = 1.0
"""What closing has, and what the goodbye has, however short the time."""


class Closable(Protocol):
    """Whose `close` raises nothing."""

    def close(self) -> None: ...


def closed(kind: str) -> InvalidInput:
    """Return the error of a call that comes after `close`. `kind` is the name of the public class."""
    return InvalidInput(f"{kind} was closed; make another one")


class ClosedByWith(ABC):
    """For use in a `with` block, whose end calls `close`, however it ends."""

    _is_closed = False
    """Whether `close` was called."""

    @abstractmethod
    def close(self) -> None:
        """What its end is."""

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
        """Refuse calls from here on, and return the time of the close. Raises InvalidInput for a wrong time, and refuses none then."""
        timing = CloseTime(timeout_seconds)
        self._is_closed = True
        return timing


class StoredByWith(ABC):
    """For use in a `with` block. The end of the block stores what was sent; a block that ends with an error drops it."""

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
    """The time of one close, counted from here on."""

    def __init__(self, timeout_seconds: float | None) -> None:
        """None: CLOSE_SECONDS. Raises InvalidInput."""
        timeout_seconds = CLOSE_SECONDS if timeout_seconds is None else timeout_seconds
        if not 0 <= timeout_seconds <= MOST_CLOSE_SECONDS:
            raise InvalidInput(
                f"{timeout_seconds:g} s for closing; give 0 or more, and at most {MOST_CLOSE_SECONDS}"
            )
        self.goodbye_seconds = max(GOODBYE_SHARE * timeout_seconds, LEAST_SECONDS)
        """The goodbye's alone."""
        self._closed_at = time.monotonic() + max(timeout_seconds - self.goodbye_seconds, LEAST_SECONDS)

    @property
    def left_seconds(self) -> float:
        """What is left for everything before the goodbye."""
        return max(0.0, self._closed_at - time.monotonic())


def close_and_say_goodbye(
    what: str, timing: CloseTime, close: Callable[[], None], goodbye: Callable[[float], None]
) -> None:
    """Have `close` done, waited for as long as there is time, and then the goodbye, which is told how many seconds it has.

    `close` goes on in a thread aside when its time is over. The goodbye is said whatever became of that, and when this thread is
    interrupted (KeyboardInterrupt, or what a signal's handler raises), too; the interruption is raised at the end.
    """
    try:
        if not _done_within(close, timing.left_seconds):
            _log.warning("%s: what it reads is not closed in time; that goes on while it says goodbye", what)
    finally:
        _despite_interruptions(lambda: goodbye(timing.goodbye_seconds), timing.goodbye_seconds)


def _done_within(act: Callable[[], None], seconds: float) -> bool:
    """Whether `act`, in a thread aside that the process waits for, was done in that time. Raises what it raised."""
    ended, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="cleave-close").start()
    is_ended = ended.wait(seconds)
    if errors:
        raise errors[0]
    return is_ended


def _despite_interruptions(act: Callable[[], None], seconds: float) -> None:
    """Have it done in a thread aside, waited for so long. The process does not wait for it."""
    ended, until = threading.Event(), time.monotonic() + seconds
    turn = threading.Lock()

    def run() -> None:
        if not turn.acquire(blocking=False):  # begun twice: the first start was interrupted
            return
        try:
            act()
        except Exception:  # noqa: BLE001 - nothing is waiting for it when its time is over
            _log.exception("a goodbye failed")
        finally:
            ended.set()

    interruption: BaseException | None = None
    is_begun = False
    while not ended.is_set() and (left := until - time.monotonic()) > 0:
        try:
            if not is_begun:
                threading.Thread(target=run, name="cleave-goodbye", daemon=True).start()
                is_begun = True
            ended.wait(left)
        except BaseException as error:  # noqa: BLE001 - raised below
            interruption = error
    if interruption is not None:
        raise interruption
