"""Keeps the list of a cluster's brokers: read periodically from the admin API, and kept while the API does
not respond.

The list contains names and web addresses, not the owners of topics.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter
from urllib.parse import urlsplit

import requests

from controller import telemetry
from controller.dataplane.pulsar_load.http import ask, origin
from controller.domain.errors import DataPlaneUnavailable, InvalidInput, Retryable

log = telemetry.get_logger(__name__)

REFRESH_SECONDS = 30.0
"""Interval at which the list is read, because brokers change less often. After a broker did not respond, the
list is read again, but at most once per MIN_REFRESH_SECONDS.
"""
MIN_REFRESH_SECONDS = 1.0
"""Shortest time between two reads of the list, however many brokers do not respond."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker. `name` is host:port as the cluster lists it; `url` is the address of its web service."""

    name: str
    url: str


class BrokerList:
    """The active brokers of one cluster. Safe to share between threads."""

    def __init__(
        self,
        session: requests.Session,
        admin_urls: Sequence[str],
        *,
        cluster: str | None = None,
        broker_url: str | None = None,
    ) -> None:
        """Create the list without reading it. `admin_urls` are web addresses of brokers of the cluster, or of a
        proxy, which are tried in turn. `cluster` is the name of the cluster whose brokers are listed; None: the
        cluster of the brokers at these addresses.

        `broker_url` is a pattern for brokers whose web service is not at the listed address, with `{host}` and
        optionally `{port}`: `https://{host}:8443`. None: the listed address, with the scheme of the first of
        `admin_urls`. If a broker has two ports, the listed address has the port without TLS. Raises InvalidInput if
        `admin_urls` is empty, or if the pattern has another placeholder.
        """
        if not admin_urls:
            raise InvalidInput("a cluster's brokers are read from an admin address; give one or more")
        pattern = broker_url or f"{urlsplit(admin_urls[0]).scheme}://{{host}}:{{port}}"
        if not _placeholders(pattern) <= {"host", "port"}:
            raise InvalidInput(
                f"broker address pattern {pattern!r}: use only {{host}} and {{port}} as placeholders"
            )
        self._session, self._pattern = session, pattern
        self._path = "/admin/v2/brokers" + (f"/{cluster}" if cluster else "")
        self._urls = deque(url.rstrip("/") for url in admin_urls)
        self._lock = threading.Lock()
        self._brokers: tuple[Broker, ...] = ()
        self._read_at = self._refresh_at = float("-inf")

    def current(self, deadline: float) -> tuple[Broker, ...]:
        """Return the brokers, sorted by name; never empty. The list is read again if the last attempt to read it is
        older than `REFRESH_SECONDS`, earlier after `refresh_soon`, and at each call while there is no list. Otherwise
        no request is made.

        If no address returns a list, a warning is logged, and the older list is returned; without an older list, a
        Retryable is raised: DataPlaneTimeout at the deadline, otherwise DataPlaneUnavailable. `deadline` is in
        `time.monotonic` seconds. Concurrent calls wait for each other.
        """
        with self._lock:
            if time.monotonic() < self._refresh_at:
                return self._brokers
            self._read_at = time.monotonic()
            try:
                self._brokers = self._ask(deadline)
            except Retryable as error:
                if not self._brokers:
                    raise
                log.warning(
                    "cannot refresh the list of brokers", brokers=len(self._brokers), error=str(error)
                )
            self._refresh_at = self._read_at + REFRESH_SECONDS
            return self._brokers

    def admin_url(self, deadline: float) -> str:
        """Return the admin address that answered last, without a slash at its end. If no address answered at the last
        attempt, return the first address that the next attempt tries. Reads the list as `current` does, with its
        errors; `deadline` is in `time.monotonic` seconds.
        """
        self.current(deadline)
        with self._lock:
            return self._urls[0]

    def refresh_soon(self) -> None:
        """Make the next `current` read the list again, because a broker did not respond. If the last attempt to read
        the list is younger than `MIN_REFRESH_SECONDS`, the list is read again only after that time. Makes no request.
        """
        with self._lock:
            self._refresh_at = min(self._refresh_at, self._read_at + MIN_REFRESH_SECONDS)

    def _ask(self, deadline: float) -> tuple[Broker, ...]:
        """Request the list of brokers from the addresses, one after the other, each for its share of the time until
        `deadline` (`time.monotonic` seconds). Return the brokers that the first successful address lists, sorted by
        name. The next call tries this address first.

        An address that returns anything but a list of names (a 404, a redirect, an empty list) has failed with
        DataPlaneUnavailable. If all addresses fail, raises the Retryable error of the last.
        """
        for addresses_left in range(len(self._urls) - 1, -1, -1):
            url = self._urls[0]
            try:
                names = ask(self._session, url + self._path, self._share(deadline, addresses_left)).document
                if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
                    return tuple(self._broker(name) for name in sorted(set(names)))
                raise DataPlaneUnavailable(f"{origin(url)} lists no brokers; is it a broker's web address?")
            except Retryable:
                self._urls.rotate(-1)
                if not addresses_left:
                    raise
        raise AssertionError("the last address returns or raises")

    @staticmethod
    def _share(deadline: float, addresses_left: int) -> float:
        """Return the deadline of one address, in `time.monotonic` seconds, if `addresses_left` more are to be
        tried: an equal share of the remaining time.
        """
        now = time.monotonic()
        return now + (deadline - now) / (addresses_left + 1)

    def _broker(self, name: str) -> Broker:
        """Return the broker with the listed name host:port. The pattern determines the address of its web
        service.
        """
        host, _, port = name.rpartition(":")
        return Broker(name, self._pattern.format(host=host, port=port).rstrip("/"))


def _placeholders(pattern: str) -> set[str]:
    """Return the names in the braces of a pattern for `str.format`. A placeholder that has a conversion or a format,
    or no name, counts as `?`. For a text that is no valid pattern, the result contains only `?`.
    """
    try:
        fields = [field for field in Formatter().parse(pattern) if field[1] is not None]
    except ValueError:
        return {"?"}
    return {name if name and not form and not conversion else "?" for _, name, form, conversion in fields}
