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

from controller.domain.operation import Operation


class OperationsInProgress:
    """Operations that threads of this runner are stepping. Thread-safe. All instants are monotonic seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[tuple[int, int], float] = {}
        self._late_until: dict[int, float] = {}

    def add(self, operations: Collection[Operation], until: float) -> None:
        """Note that a thread steps these operations under their claims. From `until` on they no longer count, because
        another runner may claim them, so a thread that never ends does not block this runner.
        """
        with self._lock:
            self._until.update(dict.fromkeys(_claims(operations), until))

    def remove(self, operations: Collection[Operation]) -> None:
        """Note that no thread steps these operations under their claims. Each call for them has ended, or is noted as
        late. A later claim of an operation, by another thread, still counts.
        """
        with self._lock:
            for claim in _claims(operations):
                self._until.pop(claim, None)

    def operation_ids(self, now: float) -> list[int]:
        """Return the sorted ids of the operations that threads are stepping. Forgets operations whose claims could
        be taken over at `now`.
        """
        with self._lock:
            self._until = {claim: until for claim, until in self._until.items() if until > now}
            return sorted({operation_id for operation_id, _ in self._until})

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


def _claims(operations: Collection[Operation]) -> list[tuple[int, int]]:
    return [(operation.operation_id, operation.claim_term) for operation in operations]
