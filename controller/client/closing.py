"""Closes clients.

A client is closed at the end of a `with` block. A consumer is closed within a time limit, part of which is
reserved for deregistration.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from controller.domain.errors import InvalidInput

_log = logging.getLogger(__name__)
CLOSE_SECONDS = 30.0
"""Time limit for closing a consumer if the application gives none."""
MOST_CLOSE_SECONDS = 86_400
"""Maximum time limit that an application may give."""
DEREGISTRATION_SHARE = 0.2
"""Part of the time limit that is reserved for deregistration."""
MIN_SECONDS = 1.0
"""Minimum time for closing the readers, and minimum time for deregistration, however short the time limit.

Closing may therefore take twice this time although the time limit is shorter.
"""


def closed_error(kind: str) -> InvalidInput:
    """Return the error of a call that comes after `close`. `kind` is the name of the public class."""
    return InvalidInput(f"{kind} was closed; make another one")


class ClosesOnExit(ABC):
    """A class for use in a `with` block. The end of the block calls `close`, also after an error. After a close that
    `_begin_close` began, a block cannot be entered: InvalidInput is raised.
    """

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
            raise closed_error(self._kind())

    def _begin_close(self, timeout_seconds: float | None) -> CloseTime:
        """Mark the object as closed, so that `_demand_open` raises InvalidInput, and return the division of the time
        limit among the steps of the close. The limit of `timeout_seconds` (None: 30) begins with this call. Methods
        that do not call `_demand_open`, such as the methods that settle received messages, still work.

        Raises InvalidInput for an invalid time (`CloseTime`); the object then stays open.
        """
        timing = CloseTime(timeout_seconds)
        self._is_closed = True
        return timing


class StoresOnExit(ClosesOnExit):
    """A class for use in a `with` block.

    The end of the block stores the sent messages. After an error in the block, sent messages that are not
    stored are dropped.
    """

    @abstractmethod
    def close(self, *, flush: bool = True) -> None:
        """Store what was sent if `flush` is True, then close."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(flush=kind is None)


class CloseTime:
    """The time limit of one close, counted from the creation of this object."""

    def __init__(self, timeout_seconds: float | None) -> None:
        """Begin to count the time limit `timeout_seconds` (None: CLOSE_SECONDS) of a close. `DEREGISTRATION_SHARE` of
        the limit is reserved for the deregistration, and the rest is for all steps before the deregistration. Each of
        the two parts is at least `MIN_SECONDS`, so a close may exceed a short limit. Raises InvalidInput for a time
        below 0 or above MOST_CLOSE_SECONDS.
        """
        timeout_seconds = CLOSE_SECONDS if timeout_seconds is None else timeout_seconds
        if not 0 <= timeout_seconds <= MOST_CLOSE_SECONDS:
            raise InvalidInput(
                f"timeout_seconds is {timeout_seconds:g}; give 0 or more, and at most {MOST_CLOSE_SECONDS}"
            )
        self.deregistration_seconds = max(DEREGISTRATION_SHARE * timeout_seconds, MIN_SECONDS)
        """Time reserved for deregistration."""
        self._closed_at = time.monotonic() + max(timeout_seconds - self.deregistration_seconds, MIN_SECONDS)

    @property
    def left_seconds(self) -> float:
        """Seconds that remain for everything before deregistration; 0 if none remain."""
        return max(0.0, self._closed_at - time.monotonic())


def close_and_deregister(
    what: str, timing: CloseTime, close: Callable[[], None], deregister: Callable[[float], None]
) -> None:
    """Call `close` in a background thread, and wait for its end until the time for closing (`timing.left_seconds`) is
    over. Then call `deregister` with its time limit in seconds, and wait for its end, at most for that time.

    If the process can start no other thread, `close` and `deregister` run in this thread, for as long as they take.

    `what` names the consumer in the log. If `close` exceeds its time, a warning is logged, and `close` continues in
    the background; a later error of `close` is dropped. `deregister` is called whatever the outcome of `close`, also
    after an interruption of this thread: KeyboardInterrupt, or an exception of a signal handler. An error that
    `close` raises within its time, or the interruption, is raised at the end. An error of `deregister` is logged.
    """
    try:
        if not _finishes_within(close, timing.left_seconds):
            _log.warning("%s: readers not closed in time; closing continues during deregistration", what)
    finally:
        _run_despite_interruptions(
            lambda: deregister(timing.deregistration_seconds), timing.deregistration_seconds
        )


def _finishes_within(function: Callable[[], None], seconds: float) -> bool:
    """Run `function` in a background thread, and return True if `function` ends within `seconds`. Otherwise return
    False; `function` then continues, the end of the process waits for the thread, and a later error of `function` is
    dropped. An error that `function` raises in time is raised here. An interruption of this thread is raised at once,
    and `function` continues.

    If the process can start no other thread, `function` runs in this thread for as long as `function` takes, and the
    result is True. An interruption then ends `function`, and is raised.
    """
    ended, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises the error
            errors.append(error)
        finally:
            ended.set()

    _run_aside(threading.Thread(target=run, name="cleave-close"), run)
    is_ended = ended.wait(seconds)
    if errors:
        raise errors[0]
    return is_ended


def _run_aside(thread: threading.Thread, run: Callable[[], None]) -> None:
    """Start the thread, whose target is `run`. If the process can start no other thread, call `run` in this thread."""
    try:
        thread.start()
    except RuntimeError:
        run()


def _run_despite_interruptions(function: Callable[[], None], seconds: float) -> None:
    """Call `function` once in a background thread, and wait for its end, at most for `seconds`. An interruption of
    this thread (KeyboardInterrupt, or an exception of a signal handler) does not shorten the wait and is raised
    afterwards; of several interruptions, the last one is raised.

    An Exception of `function` is logged. If `function` exceeds the time, this function returns without an error, and
    `function` continues; the end of the process does not wait for the thread. `function` is not called if `seconds`
    is 0 or less.

    If the process can start no other thread, `function` runs in this thread for as long as `function` takes. An
    interruption then ends `function`: KeyboardInterrupt is raised, and an Exception of a signal handler is logged.
    """
    ended, until = threading.Event(), time.monotonic() + seconds
    first_run = threading.Lock()

    def run() -> None:
        # if the first start was interrupted, a second thread was started; only one runs `function`
        if not first_run.acquire(blocking=False):
            return
        try:
            function()
        except Exception:  # noqa: BLE001 - no thread waits for `function` once its time is over
            _log.exception("deregistration failed")
        finally:
            ended.set()

    interruption: BaseException | None = None
    is_begun = False
    while not ended.is_set() and (remaining_seconds := until - time.monotonic()) > 0:
        try:
            if not is_begun:
                _run_aside(threading.Thread(target=run, name="cleave-deregister", daemon=True), run)
                is_begun = True
            ended.wait(remaining_seconds)
        except BaseException as error:  # noqa: BLE001 - raised below
            interruption = error
    if interruption is not None:
        raise interruption
