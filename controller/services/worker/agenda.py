"""The work loop's agenda: what is due when, and how long to wait until then.

It is told the time with each call (`now`, monotonic seconds). It waits for nothing and asks nobody, so it can be tested
without a clock. Four things stand on it:

- the sweep, which looks at everything;
- what the sensors said would fire next by itself, and until when that answer is good;
- work that is put off for a moment, so that more of its kind can join it;
- help for a thread that is slow with its operations.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from controller.services.worker.work import NOTHING, Work

SHORTEST_WAIT_SECONDS = 0.02
"""What is due but locked by somebody else must not make the loop spin."""
BUSY_SECONDS = 0.03
"""A thread that is still at work after this gets help. Until then it takes new operations along in its next round."""
FIRINGS_KEPT_SECONDS = 0.25
"""The sensors are not asked so soon again if only notifications came meanwhile."""


@dataclass(frozen=True, slots=True)
class Firing:
    """A sensor that fires by itself in so many seconds (negative: it is overdue), and the work it asks for."""

    in_seconds: float
    work: Work


class Agenda:
    """Due times of one work loop. Only `ask_sensors_again` may be called from another thread."""

    def __init__(self, sweep_seconds: float) -> None:
        self._sweep_seconds = sweep_seconds
        self._sweep_at = -math.inf
        self._firing, self._fires_at, self._firing_known_until = NOTHING, math.inf, -math.inf
        self._put_off, self._put_off_until = NOTHING, math.inf
        self._help_at = math.inf

    def start_sweep(self, now: float) -> None:
        """Everything is looked at now. That includes what was put off, and the next sweep counts from here."""
        self._sweep_at = now + self._sweep_seconds
        self._put_off, self._put_off_until = NOTHING, math.inf

    def is_sweep_due(self, now: float) -> bool:
        """Whether it is time to look at everything."""
        return now >= self._sweep_at

    def put_off(self, work: Work, now: float, patience_seconds: float) -> None:
        """Do this later. Work that is put off already is not delayed by it, and takes it along."""
        self._put_off = self._put_off | work
        self._put_off_until = min(self._put_off_until, now + patience_seconds)

    @property
    def has_work_put_off(self) -> bool:
        """Whether some work waits for more of its kind."""
        return self._put_off is not NOTHING

    def take_put_off(self, now: float) -> Work:
        """The work that was put off, once its time has come."""
        if now < self._put_off_until:
            return NOTHING
        work, self._put_off, self._put_off_until = self._put_off, NOTHING, math.inf
        return work

    def help_soon(self, now: float) -> None:
        """A new operation was left to a thread at work: ask the sensors in a moment whether it still waits."""
        self._help_at = min(self._help_at, now + BUSY_SECONDS)

    def ask_sensors_again(self) -> None:
        """What the sensors said is out of date."""
        self._firing_known_until = -math.inf

    def must_ask_sensors(self, now: float) -> bool:
        """Whether it is not known what fires next, or a thread may need help."""
        return now >= min(self._firing_known_until, self._help_at)

    def note_firings(self, firings: Collection[Firing], asked_at: float) -> None:
        """What the sensors said. `asked_at` is the time before they were asked, since their answer may be slow.

        Kept is the first that fires, with all that fire by then. What is overdue fires together.
        """
        self._help_at = math.inf
        first = min((firing.in_seconds for firing in firings), default=math.inf)
        self._firing = NOTHING
        if asked_at + first <= self._sweep_at:
            for firing in firings:
                if firing.in_seconds <= max(first, 0.0):
                    self._firing = self._firing | firing.work
        self._fires_at = min(asked_at + first, self._sweep_at)
        self._firing_known_until = asked_at + FIRINGS_KEPT_SECONDS

    def wait_seconds(self, now: float) -> float:
        """How long to wait for a notification before something is due."""
        next_at = min(self._fires_at, self._put_off_until, self._help_at)
        return max(next_at - now, SHORTEST_WAIT_SECONDS)

    def take_firing(self, now: float, *, waited_since: float, was_notified: bool) -> Work | None:
        """The work of the sensors that fire now, None if none does; call it once after each wait.

        A wait that was interrupted had a reason: the sensors are asked again. What is overdue fires after the shortest
        wait at the earliest, but together with a notification at once: a steady stream of them must not starve it.
        """
        earliest = (
            self._fires_at if was_notified else max(self._fires_at, waited_since + SHORTEST_WAIT_SECONDS)
        )
        fires = now >= earliest
        if fires or not was_notified:
            self.ask_sensors_again()
        return self._firing if fires else None
