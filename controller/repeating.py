"""Runs the loop of a long-lived thread, which repeats one function until the loop is stopped, whatever the function raises.

A thread that dies is noticed only when its work is missed. So the loop logs an expected error in one line and any other error with its
traceback, pauses, and continues. The caller names the errors that end the process on purpose.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from controller import client_metrics
from controller.domain.errors import CleaveError, Retryable

if TYPE_CHECKING:
    import structlog

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 10.0
"""Pause after an unexpected error. Each further pause doubles, up to the longest, until a round succeeds."""


class Repeating:
    """The loop of one thread. Any thread may set the event that stops it."""

    def __init__(
        self,
        act: Callable[[], float],
        stopping: threading.Event,
        log: structlog.typing.FilteringBoundLogger,
        failed: str,
        *,
        retry_seconds: tuple[float, float] = (0.0, 1.0),
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
        expected: tuple[type[Exception], ...] = (CleaveError,),
        ends_with: tuple[type[Exception], ...] = (),
        on_error: Callable[[Exception], object] = lambda _: None,
        says_once: bool = False,
    ) -> None:
        """`act` returns the seconds until its next round. `failed` is the log event of a round that raises, and the loop's name in metrics.
        An error of a type in `expected` is logged in one line, any other with its traceback. With `says_once` an expected error with the
        text of the last one is not logged again until a round succeeds.

        After a Retryable the loop pauses for the delay of the error, within `retry_seconds` (minimum, maximum). After another error it
        pauses for a backoff of at most `longest_pause_seconds`, but at least the minimum. Then it calls `on_error` with the error. An error
        of a type in `ends_with` leaves the loop.
        """
        self._act, self._stopping, self._log, self._failed = act, stopping, log, failed
        self._retry_seconds, self._longest_pause_seconds = retry_seconds, longest_pause_seconds
        self._expected, self._ends_with, self._on_error = expected, ends_with, on_error
        self._says_once, self._last_said = says_once, ""
        self._backoff_seconds = 0.0

    def run(self, first_pause_seconds: float = 0.0) -> None:
        """Call `act` until the loop is stopped, for the first time after `first_pause_seconds`. Between two rounds, pause for the seconds
        that `act` returned, or after an error for its backoff.

        An error is logged, and `on_error` is called before the next round. Raises only errors of the types in `ends_with`. Does nothing
        if the loop was stopped before.
        """
        pause_seconds = first_pause_seconds
        failure: Exception | None = None
        while not self._stopping.wait(pause_seconds):
            if failure is not None and not self._puts_right(failure):
                return
            try:
                pause_seconds, failure = self._act(), None
                self._backoff_seconds, self._last_said = 0.0, ""
            except self._ends_with:
                raise
            except Exception as error:  # noqa: BLE001 - the thread would end unnoticed
                pause_seconds, failure = self._reported(error), error

    def _puts_right(self, failure: Exception) -> bool:
        """Call `on_error` to repair the effects of the error. An error of `on_error` is logged. Return False if the loop was stopped in the
        meantime.
        """
        try:
            self._on_error(failure)
        except Exception:  # noqa: BLE001 - as in `run`
            self._log.exception(self._failed)
        return not self._stopping.is_set()

    def _reported(self, error: Exception) -> float:
        """Log the error (an unexpected error with its traceback, counted in the metrics), and return the seconds to pause: the delay of a
        Retryable within `retry_seconds`, otherwise a backoff that doubles with each error.
        """
        if not isinstance(error, self._expected):
            client_metrics.LOOP_ERRORS.labels(self._failed).inc()
            self._log.error(self._failed, exc_info=error)
        elif not (self._says_once and str(error) == self._last_said):
            self._last_said = str(error)
            self._log.warning(self._failed, error=self._last_said)
        shortest, longest = self._retry_seconds
        if isinstance(error, Retryable):
            return max(shortest, min(error.delay_seconds, longest))
        self._backoff_seconds = min(
            2 * self._backoff_seconds or FIRST_PAUSE_SECONDS, self._longest_pause_seconds
        )
        return max(shortest, self._backoff_seconds)


def repeat_every(
    seconds: float,
    act: Callable[[], object],
    stopping: threading.Event,
    log: structlog.typing.FilteringBoundLogger,
    failed: str,
    *,
    expected: tuple[type[Exception], ...] = (CleaveError,),
) -> None:
    """Call `act` until `stopping` is set, for the first time after `seconds`, and `seconds` after the end of each call. Any error of `act`
    is logged as the event `failed`, without a traceback if its type is in `expected`, and the loop continues. If `seconds` is less than
    `LONGEST_PAUSE_SECONDS`, the pause after an error that is not Retryable may be longer than `seconds`.
    """

    def once() -> float:
        act()
        return seconds

    rounds = Repeating(once, stopping, log, failed, retry_seconds=(seconds, seconds), expected=expected)
    rounds.run(first_pause_seconds=seconds)


@contextmanager
def contained(
    log: structlog.typing.FilteringBoundLogger,
    failed: str,
    *,
    raised: tuple[type[Exception], ...] = (),
    **fields: object,
) -> Iterator[None]:
    """Keep an error of the block from the other parts of a round, such as other data planes or topics. The error is logged as the event
    `failed` with these fields: a CleaveError in one line, any other error, which is also counted in the metrics, with its traceback. An
    error of a type in `raised` is raised instead.
    """
    try:
        yield
    except raised:
        raise
    except CleaveError as error:
        log.warning(failed, **fields, error=str(error))
    except Exception:
        client_metrics.LOOP_ERRORS.labels(failed).inc()
        log.exception(failed, **fields)


class Stoppable:
    """A background service whose method `run` repeats rounds until the service is stopped."""

    def __init__(self, interrupt: Callable[[], None] = lambda: None) -> None:
        """`interrupt` ends the wait of a round, if a round waits for anything but the pause between rounds. It must be safe in a signal
        handler.
        """
        self._stopping, self._interrupt = threading.Event(), interrupt

    def stop(self) -> None:
        """Make `run` return after the present round. Safe in a signal handler."""
        self._stopping.set()
        self._interrupt()
