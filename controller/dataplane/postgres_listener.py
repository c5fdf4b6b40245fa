"""A thread that listens to PostgreSQL notifications and calls back.

A notification only says that the tables should be read. After every connection, the first one included, `on_gap` is called, since
notifications may have been missed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sqlalchemy import URL

from controller import telemetry
from controller.forks import OneProcess
from controller.postgres.address import DatabaseAddress
from controller.postgres.listener import Listener
from controller.repeating import Repeating

log = telemetry.get_logger(__name__)

_RETRY_SECONDS = 0.5
_WAIT_SECONDS = 3600.0


class PostgresListener(OneProcess):
    """Listens from `start` to `close`. The callbacks run in its thread and must not block. The listener connects again after a callback that raises."""

    def __init__(
        self,
        url: str | URL | DatabaseAddress,
        channels: Sequence[str],
        *,
        on_notification: Callable[[int], None],
        on_gap: Callable[[], None],
    ) -> None:
        """`on_notification` gets the id that a payload begins with. A notification without an id is ignored: any login may send it."""
        self._listener = Listener(url, channels)
        self._on_notification, self._on_gap = on_notification, on_gap
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="postgres-listener", daemon=True)

    def start(self) -> None:
        """Begin; returns at once. What happened before the first `on_gap` may be missed, as after any gap."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening and wait for the thread; safe to repeat."""
        self._closing.set()
        self._listener.interrupt()
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        Repeating(
            self._listen,
            self._closing,
            log,
            "notifications not heard",
            retry_seconds=(0.0, _RETRY_SECONDS),
            longest_pause_seconds=_RETRY_SECONDS,
            on_error=lambda _: self._listener.disconnect(),
            says_once=True,
        ).run()

    def _listen(self) -> float:
        """Wait once. Return the seconds until the next wait."""
        for one in self._listener.wait(_WAIT_SECONDS):
            if one.is_resync:
                self._on_gap()
            elif one.first_id is not None:
                self._on_notification(one.first_id)
        return 0.0
