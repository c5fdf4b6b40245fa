"""Which brokers a cluster has: asked of the admin API now and then, and kept while it does not answer.

Web addresses only; who owns which topic is not known here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from controller import telemetry
from controller.dataplane.pulsar_load.http import HttpSession, ask, origin
from controller.domain.errors import DataPlaneUnavailable, InvalidInput, Retryable

log = telemetry.get_logger(__name__)

REFRESH_SECONDS = 30.0
"""Brokers come and go less often than this. After a broker was silent the list is asked for at once."""
FEWEST_SECONDS = 1.0
"""The list is asked for no more often, however many brokers are silent."""


@dataclass(frozen=True, slots=True)
class Broker:
    """`name` is host:port as the cluster lists it; `url` is where its web service answers."""

    name: str
    url: str


class BrokerList:
    """Active brokers of one cluster; safe to share between threads."""

    def __init__(
        self,
        session: HttpSession,
        admin_urls: Sequence[str],
        *,
        cluster: str | None = None,
        broker_url: str | None = None,
    ) -> None:
        """`admin_urls` are web addresses of brokers or of a proxy, asked in turn; `cluster` None: the one they are of.

        `broker_url` is a pattern with `{host}` and perhaps `{port}`, for brokers whose web service is elsewhere than
        in the list (which names the port without TLS where there are two): `https://{host}:8443`.
        """
        if not admin_urls:
            raise InvalidInput("a cluster's brokers are asked for at an admin address; none is given")
        pattern = broker_url or f"{urlsplit(admin_urls[0]).scheme}://{{host}}:{{port}}"
        try:
            pattern.format(host="h", port="1")
        except (LookupError, ValueError):
            raise InvalidInput(
                f"broker address pattern {pattern!r}: only {{host}} and {{port}} are filled in"
            ) from None
        self._session, self._pattern = session, pattern
        path = "/admin/v2/brokers" + (f"/{cluster}" if cluster else "")
        self._urls = deque(url.rstrip("/") + path for url in admin_urls)
        self._lock = threading.Lock()
        self._known: tuple[Broker, ...] = ()
        self._asked_at = self._refresh_at = float("-inf")

    def current(self, deadline: float) -> tuple[Broker, ...]:
        """The brokers by name; those of last time while nobody answers. Raises Retryable when there was
        no last time.
        """
        with self._lock:
            if time.monotonic() < self._refresh_at:
                return self._known
            self._asked_at = time.monotonic()
            try:
                self._known = self._ask(deadline)
            except Retryable as error:
                if not self._known:
                    raise
                log.warning("list of brokers not refreshed", brokers=len(self._known), error=str(error))
            self._refresh_at = self._asked_at + REFRESH_SECONDS
            return self._known

    def doubt(self) -> None:
        """A broker was silent: the list may be old."""
        with self._lock:
            self._refresh_at = min(self._refresh_at, self._asked_at + FEWEST_SECONDS)

    def _ask(self, deadline: float) -> tuple[Broker, ...]:
        """Ask one address after the other. The one that answers comes first the next time."""
        for left in range(len(self._urls) - 1, -1, -1):
            url = self._urls[0]
            try:
                names = ask(self._session, url, self._share(deadline, left)).document
                if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
                    return tuple(self._broker(name) for name in sorted(set(names)))
                raise DataPlaneUnavailable(f"{origin(url)} lists no brokers; is it a broker's web address?")
            except Retryable:
                self._urls.rotate(-1)
                if not left:
                    raise
        raise AssertionError("the last address returns or raises")

    @staticmethod
    def _share(deadline: float, others: int) -> float:
        """The seconds that an address has, when so many more are to be tried."""
        now = time.monotonic()
        return now + (deadline - now) / (others + 1)

    def _broker(self, name: str) -> Broker:
        host, _, port = name.rpartition(":")
        return Broker(name, self._pattern.format(host=host, port=port).rstrip("/"))
