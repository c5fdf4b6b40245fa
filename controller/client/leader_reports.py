"""Reports the released buckets and the drained segments of one consumer to its leader, in a background thread.

Each report is a transaction of the leader, and a consumer often releases many buckets at once. At most one
report is therefore under way; what is added in the meantime goes into the next report.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from controller.client.background_calls import BackgroundCalls
from controller.domain.errors import CleaveError

Entry = Mapping[str, Any]


class ReportKind(NamedTuple):
    """The kind of a report, `released` or `drained`, the field of its request that has the entries, and the
    incarnation of the consumer that the entries belong to.
    """

    name: str
    field: str
    incarnation: str


Send = Callable[[ReportKind, list[Entry]], None]
"""Sends a report with its entries. Raises CleaveError if the report may not have arrived."""


class LeaderReports:
    """The reports of one consumer. Safe to use from any thread.

    A report that is refused or lost is dropped, because the caller adds the entries again while the leader has
    not acted on them.
    """

    def __init__(self, calls: BackgroundCalls, send: Send) -> None:
        """Create the queue. `calls` provides the background thread, and `send` sends a report there."""
        self._calls, self._send = calls, send
        self._lock = threading.Lock()
        self._waiting: dict[ReportKind, dict[Hashable, Entry]] = {}
        self._is_sending = False

    def add(self, kind: ReportKind, entries: Mapping[Hashable, Entry]) -> None:
        """Queue the entries for a report, and begin to send in a background thread if no report is being
        sent. `entries` are the parts of the report, by a key that identifies what an entry is about; an entry
        replaces a queued entry of the same kind and key. Nothing is sent once `calls` is closed.
        """
        with self._lock:
            self._waiting.setdefault(kind, {}).update(entries)
            if self._is_sending:
                return
            self._is_sending = self._calls.submit(self._send_all)

    def _send_all(self) -> None:
        """Send reports until no entry is queued. Runs in a background thread. A report whose sending raises
        CleaveError is dropped. Any other error is raised; the next `add` begins to send again, without that
        report.
        """
        try:
            while report := self._next():
                kind, entries = report
                with suppress(CleaveError):
                    self._send(kind, list(entries.values()))
        except BaseException:
            with self._lock:
                self._is_sending = False
            raise

    def _next(self) -> tuple[ReportKind, dict[Hashable, Entry]] | None:
        """Remove and return the queued entries, by key, of the kind that has waited longest. Return None, and
        mark the sending as ended, if no entry waits.
        """
        with self._lock:
            for kind in self._waiting:
                return kind, self._waiting.pop(kind)
            self._is_sending = False
            return None
