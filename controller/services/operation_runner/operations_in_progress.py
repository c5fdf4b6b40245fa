"""The operations that the threads of one runner are stepping, and those for which a call may still be in
progress.

A claim in the journal with this runner's incarnation that no thread here is stepping belongs to no thread:
the store became unavailable during a step, or it was restored without the newest records. The runner makes no
call for such an operation, and no other runner may claim it before the claim's end, so the runner resumes it
at once in a new term. This memory ends with the process; a restarted process waits for the claim's end like
any other runner.
"""

from __future__ import annotations

import threading
from collections.abc import Collection


class OperationsInProgress:
    """Operations that threads of this runner are stepping. Thread-safe. All instants are monotonic seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[int, float] = {}
        self._late_until: dict[int, float] = {}

    def add(self, operation_ids: Collection[int], until: float) -> None:
        """Note that a thread steps these operations. From `until` on they no longer count, because another
        runner may claim them, so a thread that never ends does not block this runner.
        """
        with self._lock:
            self._until.update(dict.fromkeys(operation_ids, until))

    def remove(self, operation_ids: Collection[int]) -> None:
        """Note that no thread steps these operations. Each call for them has ended, or is noted as late."""
        with self._lock:
            for operation_id in operation_ids:
                self._until.pop(operation_id, None)

    def operation_ids(self, now: float) -> list[int]:
        """Return the sorted ids of the operations that threads are stepping. Forgets operations whose claims could
        be taken over at `now`.
        """
        with self._lock:
            self._until = {operation_id: until for operation_id, until in self._until.items() if until > now}
            return sorted(self._until)

    def note_late_call(self, operation_ids: Collection[int], until: float) -> None:
        """Note that a call for these operations timed out, and may be in progress until the instant `until`."""
        with self._lock:
            self._late_until.update(dict.fromkeys(operation_ids, until))

    def late_seconds(self, operation_id: int, now: float) -> float:
        """Return the seconds from `now` for which a call that timed out may still be in progress; 0 if there
        is none.
        """
        with self._lock:
            self._late_until = {late_id: until for late_id, until in self._late_until.items() if until > now}
            return max(self._late_until.get(operation_id, now) - now, 0.0)
