"""The operations that the threads of one runner are stepping, and those of which a call may still be under way.

A claim in the journal that names this runner's incarnation, and that no thread here is stepping, belongs to no thread: the store
went away in the middle, or it came back without the newest records. No call of the runner is under way for such an
operation, and no other runner may take it before the claim's end, so the runner resumes it at once, in a new term.
The memory ends with the process; a restarted process waits for the claim's end as any other runner does.
"""

from __future__ import annotations

import threading
from collections.abc import Collection


class ClaimsInHand:
    """Thread-safe. All instants are monotonic seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[int, float] = {}
        self._late_until: dict[int, float] = {}

    def take(self, operation_ids: Collection[int], until: float) -> None:
        """Note that a thread steps these operations. From `until` on another runner may have them, so that a thread that
        never puts them down keeps this runner from nothing.
        """
        with self._lock:
            self._until.update(dict.fromkeys(operation_ids, until))

    def put_down(self, operation_ids: Collection[int]) -> None:
        """Note that no thread steps these. Each call for them has ended, or is noted as late."""
        with self._lock:
            for operation_id in operation_ids:
                self._until.pop(operation_id, None)

    def held(self, now: float) -> list[int]:
        """Return the operations that threads are stepping, by id."""
        with self._lock:
            self._until = {one: until for one, until in self._until.items() if until > now}
            return sorted(self._until)

    def note_late_call(self, operation_ids: Collection[int], until: float) -> None:
        """Note that a call for these timed out and may be under way until that instant."""
        with self._lock:
            self._late_until.update(dict.fromkeys(operation_ids, until))

    def late_seconds(self, operation_id: int, now: float) -> float:
        """Return for how long a call that timed out may still be under way; 0 if none is."""
        with self._lock:
            self._late_until = {one: until for one, until in self._late_until.items() if until > now}
            return max(self._late_until.get(operation_id, now) - now, 0.0)
