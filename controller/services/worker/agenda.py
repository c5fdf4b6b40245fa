"""The work loop's agenda: which work is due when, and how long to wait until then.

Each call passes the time (`now`, monotonic seconds). The agenda neither waits nor makes calls, so it can be
tested without a clock. It keeps four things:

- the next sweep, which reads all tables;
- the work of the sensors that fire next, and until when this information is valid;
- deferred work, which waits briefly for more work of its kind;
- until when the sensors are queried again, because a thread may be slow with its operations.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from controller.services.worker.work import NOTHING, Work

SHORTEST_WAIT_SECONDS = 0.02
"""Minimum wait of the loop. Without it, work that is due but locked by another process would make the loop
spin.
"""
BUSY_SECONDS = 0.03
"""Seconds after which a thread that is still busy gets help. Until then it takes new operations in its next
round.
"""
FIRINGS_KEPT_SECONDS = 0.25
"""Seconds for which the sensors' next firing is kept, if only notifications arrive in between."""


@dataclass(frozen=True, slots=True)
class Firing:
    """A sensor that fires without a notification in `in_seconds` (negative: it is overdue), and the work it
    requests.
    """

    in_seconds: float
    work: Work


class Agenda:
    """Due times of one work loop, whose sweeps begin at most `sweep_seconds` apart. A new agenda has a sweep
    due. Not thread-safe, except `ask_sensors_again`.
    """

    def __init__(self, sweep_seconds: float) -> None:
        self._sweep_seconds = sweep_seconds
        self._sweep_at = -math.inf
        self._firing, self._fires_at, self._firing_known_until = NOTHING, math.inf, -math.inf
        self._deferred, self._deferred_until = NOTHING, math.inf
        self._ask_again_at = math.inf

    def start_sweep(self, now: float) -> None:
        """Note that a sweep begins. Discards the deferred work, which the sweep includes, and sets the next
        sweep to `sweep_seconds` later.
        """
        self._sweep_at = now + self._sweep_seconds
        self._deferred, self._deferred_until = NOTHING, math.inf

    def is_sweep_due(self, now: float) -> bool:
        """Return True if a sweep is due."""
        return now >= self._sweep_at

    def defer(self, work: Work, now: float, patience_seconds: float) -> None:
        """Add the work to the deferred work. If no work was deferred, the deferred work becomes due
        `patience_seconds` after `now`. If work was deferred already, all of it becomes due at the earlier of the two
        times.
        """
        self._deferred = self._deferred | work
        self._deferred_until = min(self._deferred_until, now + patience_seconds)

    @property
    def has_deferred_work(self) -> bool:
        """True if work is deferred."""
        return self._deferred is not NOTHING

    def take_deferred(self, now: float) -> Work:
        """Return all deferred work and remove it from the agenda, if it is due at `now`. Otherwise return NOTHING and
        change nothing.
        """
        if now < self._deferred_until:
            return NOTHING
        work, self._deferred, self._deferred_until = self._deferred, NOTHING, math.inf
        return work

    def ask_sensors_soon(self, now: float) -> None:
        """Make `must_ask_sensors` return True from `BUSY_SECONDS` after `now`. An earlier call that takes effect
        sooner stays in force. Used if a new operation was left to a busy thread and may still wait, or if evaluations
        of single topics have changed when these topics are due.
        """
        self._ask_again_at = min(self._ask_again_at, now + BUSY_SECONDS)

    def ask_sensors_again(self) -> None:
        """Invalidate the sensors' answers. Thread-safe."""
        self._firing_known_until = -math.inf

    def must_ask_sensors(self, now: float) -> bool:
        """Return True if the sensors' next firing is unknown or outdated, or if `ask_sensors_soon` was called
        `BUSY_SECONDS` ago.
        """
        return now >= min(self._firing_known_until, self._ask_again_at)

    def note_firings(self, firings: Collection[Firing], queried_at: float) -> None:
        """Replace the stored answers of the sensors; the answers are valid until `FIRINGS_KEPT_SECONDS` after
        `queried_at`, the time just before the sensors were queried. The agenda keeps the work of the sensor that
        fires first, and of all overdue sensors. If even the first sensor fires after the next sweep, its work is not
        kept, because the sweep includes it. No firings: only the next sweep is due. Earlier calls of
        `ask_sensors_soon` have no further effect.
        """
        self._ask_again_at = math.inf
        first_seconds = min((firing.in_seconds for firing in firings), default=math.inf)
        self._firing = NOTHING
        if queried_at + first_seconds <= self._sweep_at:
            for firing in firings:
                if firing.in_seconds <= max(first_seconds, 0.0):
                    self._firing = self._firing | firing.work
        self._fires_at = min(queried_at + first_seconds, self._sweep_at)
        self._firing_known_until = queried_at + FIRINGS_KEPT_SECONDS

    def wait_seconds(self, now: float) -> float:
        """Return the seconds from `now` for which the loop may wait for a notification: until a sensor fires, the
        next sweep or deferred work is due, or a call of `ask_sensors_soon` takes effect, whichever is first. At least
        `SHORTEST_WAIT_SECONDS`, even if work is overdue.
        """
        next_at = min(self._fires_at, self._deferred_until, self._ask_again_at)
        return max(next_at - now, SHORTEST_WAIT_SECONDS)

    def take_firing(self, now: float, *, waited_since: float, was_notified: bool) -> Work | None:
        """Return the work of the sensors that fire at `now`; None if no sensor fires, and NOTHING if only the next
        sweep is due. Call this method once after each wait. `waited_since` is the beginning of the wait;
        `was_notified` is True if the wait ended with a notification. If a sensor or the sweep is due, or the wait
        ended without a notification, the stored answers become invalid, so that the sensors are queried again before
        the next wait.

        Without a notification, overdue sensors fire at the earliest `SHORTEST_WAIT_SECONDS` after the beginning of
        the wait. With a notification they fire at once, so that a steady stream of notifications does not starve
        them.
        """
        earliest = (
            self._fires_at if was_notified else max(self._fires_at, waited_since + SHORTEST_WAIT_SECONDS)
        )
        fires = now >= earliest
        if fires or not was_notified:
            self.ask_sensors_again()
        return self._firing if fires else None
