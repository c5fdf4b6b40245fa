"""A thread that acts for a consumer while its application is busy with what it was given.

What a consumer holds is for one thread at a time: whichever has the turn. A call of the application has it from its beginning to its
end; in between this thread has it, for what cannot wait for the next call. It hands out nothing.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

_LONGEST_REST_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_log = logging.getLogger(__name__)


class StandIn:
    """From `start` to `stop`. `ring` is for any thread."""

    def __init__(self, act: Callable[[], float]) -> None:
        """`act` does what is due and says in how many seconds something will be, infinity for nothing; `ring` has it called at once."""
        self._act = act
        self.turn = threading.RLock()
        """Nobody else acts meanwhile."""
        self._rung, self._is_stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="cleave-stand-in", daemon=True)

    def start(self) -> None:
        """Act from now on."""
        self._thread.start()

    def ring(self) -> None:
        """There may be something to do."""
        self._rung.set()

    def stop(self) -> None:
        """Act no more; returns when what is under way has ended. Safe to repeat, and before `start`."""
        self._is_stopping = True
        self._rung.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        rest_seconds = math.inf
        while not self._is_stopping:
            self._rung.wait(min(rest_seconds, _LONGEST_REST_SECONDS))
            self._rung.clear()
            if not self._takes_its_turn():
                return
            try:
                rest_seconds = self._act()
            except Exception:  # noqa: BLE001 - the application's next call does it, and is told
                _log.exception("what a busy application's consumer was to do failed")
                rest_seconds = math.inf
            finally:
                self.turn.release()

    def _takes_its_turn(self) -> bool:
        """False once it is to stop, also while somebody has the turn: a signal's handler may close in the middle of a call."""
        while not self.turn.acquire(timeout=_LOOK_SECONDS):
            if self._is_stopping:
                return False
        if self._is_stopping:
            self.turn.release()
            return False
        return True
