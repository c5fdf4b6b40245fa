"""The demo's clock: a day of fixed length that waits until the expected operations were seen.

On a slow or busy machine a decision comes later, and a day that followed the clock alone would have another outcome
there. So the day stops at a gate until the operation that belongs to the gate was seen, at most for
`patience_seconds`. The story advances the clock; the producers, which are separate processes, read the current share
of the day from the clock's file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Gate:
    """A share (0..1) of the day at which the clock waits until `sight`, the name of an expected operation, was seen."""

    share: float
    sight: str


class DayClock:
    """A clock that `tick` advances and writes to `path`. Begins at the first tick."""

    def __init__(
        self,
        path: Path,
        *,
        day_seconds: float,
        gates: Sequence[Gate],
        patience_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the settings. `patience_seconds`: the longest wait at one gate."""
        self._path, self._day_seconds, self._patience_seconds = path, day_seconds, patience_seconds
        self._gates = sorted(gates, key=lambda gate: gate.share)
        self._now = now
        self._last: float | None = None
        self._waited = 0.0
        self.share = 0.0

    @property
    def waits_for(self) -> str:
        """The sight for which the clock is waiting; empty while the clock advances."""
        return self._gates[0].sight if self._gates and self.share >= self._gates[0].share else ""

    def tick(self, has_seen: Callable[[str], bool]) -> float:
        """Advance by the time since the last tick, at most to the first gate that is still closed, write the share to the file, and
        return it.

        A gate at which the clock waits opens when `has_seen` returns True for its sight, or after `patience_seconds`; the clock advances
        again from the next tick on.
        """
        now = self._now()
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        if self.waits_for:
            self._waited += passed
            if has_seen(self.waits_for) or self._waited >= self._patience_seconds:
                self._gates.pop(0)
                self._waited = 0.0
        else:
            self.share += passed / self._day_seconds
            while self._gates and self.share >= self._gates[0].share and has_seen(self._gates[0].sight):
                self._gates.pop(0)
            if self._gates:
                self.share = min(self.share, self._gates[0].share)
        self._write()
        return self.share

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(f"{self.share:.6f}", encoding="ascii")
        os.replace(new, self._path)


def read_share(path: Path) -> float:
    """Return the share of the day that has passed, as the clock last wrote it. Raises FileNotFoundError before the first tick."""
    return float(path.read_text(encoding="ascii"))
