"""Which brokers a cluster has: asked of the admin API now and then, and kept while it does not answer.

Web addresses only; who owns which topic is not known here.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from controller import telemetry
from controller.dataplane.pulsar_load.http import HttpSession, ask, origin
from controller.domain.errors import DataPlaneUnavailable, InvalidInput, Retryable

log = telemetry.get_logger(__name__)

REFRESH_SECONDS = 30.0
"""Brokers come and go more seldom; after a broker was silent the list is asked for at once."""
FEWEST_SECONDS = 1.0
"""However many brokers are silent, the list is asked for no oftener."""


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
        admin_url: str,
        *,
        cluster: str | None = None,
        broker_url: str | None = None,
    ) -> None:
        """`admin_url` is any broker's or a proxy's web address; `cluster` None: the one it belongs to.

        `broker_url` is a pattern with `{host}` and perhaps `{port}`, for brokers whose web service is elsewhere than
        in the list (which names the port without TLS where there are two): `https://{host}:8443`.
        """
        try:
            (broker_url or "{host}{port}").format(host="h", port="1")
        except (LookupError, ValueError):
            raise InvalidInput(
                f"broker address pattern {broker_url!r}: only {{host}} and {{port}} are filled in"
            ) from None
        self._session = session
        self._url = admin_url.rstrip("/") + "/admin/v2/brokers" + (f"/{cluster}" if cluster else "")
        self._pattern = broker_url or f"{origin(admin_url).partition(':')[0]}://{{host}}:{{port}}"
        self._lock = threading.Lock()
        self._known: tuple[Broker, ...] = ()
        self._asked_at = self._refresh_at = float("-inf")

    def current(self, deadline: float) -> tuple[Broker, ...]:
        """The brokers by name; those of last time while nobody answers. Raises Retryable when there was no last time."""
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
        names = ask(self._session, self._url, deadline).document
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise DataPlaneUnavailable(f"{origin(self._url)} lists no brokers; is it a broker's web address?")
        found = []
        for name in sorted(set(names)):
            host, _, port = name.rpartition(":")
            found.append(Broker(name, self._pattern.format(host=host, port=port).rstrip("/")))
        return tuple(found)
