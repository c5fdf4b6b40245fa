"""Listens to PostgreSQL notifications in a thread, and calls back.

A notification only says that the tables should be read. `on_gap` is called after every connection, including
the first, because notifications may have been missed.
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
    """A thread that listens to PostgreSQL channels from `start` to `close`. The callbacks run in this thread
    and must not block. If a callback raises, the listener reconnects.
    """

    def __init__(
        self,
        url: str | URL | DatabaseAddress,
        channels: Sequence[str],
        *,
        on_notification: Callable[[int], None],
        on_gap: Callable[[], None],
    ) -> None:
        """Create the listener without connecting. Raises InvalidInput for an invalid `url`.

        `on_notification` is called with the id (of the log or topic, as the channel defines) at the beginning
        of a notification's payload, whichever of the `channels` it came from. A notification without an id is
        ignored, because any login may send it. `on_gap` is called after each connection, the first included,
        because earlier notifications may have been missed.
        """
        self._listener = Listener(url, channels)
        self._on_notification, self._on_gap = on_notification, on_gap
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="postgres-listener", daemon=True)

    def start(self) -> None:
        """Start the thread, and return without waiting for a connection. Must be called at most once. The first call
        of `on_gap` shows that the listener is connected; notifications before it may be missed.
        """
        self._thread.start()

    def close(self) -> None:
        """Stop listening, wait for the thread, and close the connection. Further calls do nothing, and a listener
        that was never started may be closed. Must not be called from a callback, because the callbacks run in the
        thread that `close` waits for.
        """
        self._closing.set()
        self._listener.interrupt()
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        """Listen until `close`. After an error, log the error, disconnect, and listen again after at most 0.5 s.
        A CleaveError with the text of the last error is not logged again until listening succeeds.
        """
        Repeating(
            self._listen,
            self._closing,
            log,
            "cannot listen to notifications",
            retry_seconds=(0.0, _RETRY_SECONDS),
            longest_pause_seconds=_RETRY_SECONDS,
            on_error=lambda _: self._listener.disconnect(),
            says_once=True,
        ).run()

    def _listen(self) -> float:
        """Wait once for notifications, for at most an hour. Call `on_notification` for each notification that
        contains an id. If there is no connection, or the connection is lost, connect and call `on_gap` instead.
        Return 0, the number of seconds until the next wait. Raises StoreUnavailable if PostgreSQL is unreachable, and
        the errors of the callbacks.
        """
        for notification in self._listener.wait(_WAIT_SECONDS):
            if notification.is_resync:
                self._on_gap()
            elif notification.first_id is not None:
                self._on_notification(notification.first_id)
        return 0.0
