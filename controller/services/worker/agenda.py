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
        """Defer the work by at most `patience_seconds`. Work that is already deferred keeps its due time, and
        takes the added work along.
        """
        self._deferred = self._deferred | work
        self._deferred_until = min(self._deferred_until, now + patience_seconds)

    @property
    def has_deferred_work(self) -> bool:
        """True if work is deferred."""
        return self._deferred is not NOTHING

    def take_deferred(self, now: float) -> Work:
        """Return and remove the deferred work if it is due; otherwise NOTHING."""
        if now < self._deferred_until:
            return NOTHING
        work, self._deferred, self._deferred_until = self._deferred, NOTHING, math.inf
        return work

    def ask_sensors_soon(self, now: float) -> None:
        """Make `must_ask_sensors` True after `BUSY_SECONDS`: a new operation was left to a busy thread and may still wait, or
        evaluations of single topics have changed when they are due.
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
        """Store the sensors' answers for `FIRINGS_KEPT_SECONDS`. `queried_at` is the time before the sensors were
        queried, because the query may be slow.

        The agenda keeps the work of the sensor that fires first, and of all that are overdue. A sensor that fires after
        the next sweep is ignored. Earlier calls of `ask_sensors_soon` have no further effect.
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
        """Return the seconds to wait for a notification until work is due or `ask_sensors_soon` takes effect, at least
        `SHORTEST_WAIT_SECONDS`.
        """
        next_at = min(self._fires_at, self._deferred_until, self._ask_again_at)
        return max(next_at - now, SHORTEST_WAIT_SECONDS)

    def take_firing(self, now: float, *, waited_since: float, was_notified: bool) -> Work | None:
        """Return the work of the sensors that fire at `now`; None if none does. NOTHING if only the next sweep is due.
        Call it once after each wait. If sensors fire, the sensors must be queried again before the next wait.

        After a wait that ended early without a notification, the sensors are queried again too. Overdue
        sensors fire after `SHORTEST_WAIT_SECONDS` at the earliest. They fire at once together with a
        notification, so that a steady stream of notifications does not starve them.
        """
        earliest = (
            self._fires_at if was_notified else max(self._fires_at, waited_since + SHORTEST_WAIT_SECONDS)
        )
        fires = now >= earliest
        if fires or not was_notified:
            self.ask_sensors_again()
        return self._firing if fires else None
