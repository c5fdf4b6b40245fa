"""Locates the logs of topics: finds out which data plane a topic is on, and creates one log client for each
data plane.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from controller.client.servers import Servers, topic_path
from controller.dataplane.log_client import LogClient
from controller.dataplane.pulsar.cluster_access import PulsarAccess, PulsarAuth
from controller.dataplane.registry import PlaneSettings, build_log_client
from controller.domain.errors import Unsupported
from controller.forks import Renewed
from controller.postgres.address import DatabaseAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedAuth:
    """Login for topics on embedded logs. Immutable, safe to share between threads."""

    user: str
    """Role of PostgreSQL that is a member of `cleave_client`."""
    password: str | None = field(default=None, repr=False)
    """Password of the role. None: libpq finds it, for instance in a password file."""
    ca_file: str | None = None
    """PEM bundle to check the server's certificate and host name. None: as the address that the workers send
    says.
    """


class _Access(PulsarAccess):
    """Broker addresses from a worker, and the application's credentials, which messages name as `PulsarAuth`
    does.
    """

    __slots__ = ()
    _name = PulsarAuth._name


class Logs(Renewed):
    """Log clients by data plane, created when a topic needs one and kept until `close`. Safe to share between
    threads and with forked processes.
    """

    def __init__(
        self,
        servers: Servers,
        pulsar: PulsarAuth | None,
        embedded: EmbeddedAuth | None,
        call_timeout_seconds: float,
    ) -> None:
        self._servers, self._pulsar, self._embedded = servers, pulsar, embedded
        self._call_timeout_seconds = call_timeout_seconds
        self._begin_in_child()

    def _begin_in_child(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[tuple[str | None, ...], LogClient] = {}

    def of(self, topic: str) -> LogClient:
        """Query a worker for the data plane of the topic, a full name, and return the log client of that data
        plane, which topics of the same data plane share. Raises Unsupported if this client has no login for
        embedded logs, if the workers do not know the addresses of the data plane, if a library for it is
        missing, or if the data plane keeps layouts itself; and the errors of `Servers.ask`.
        """
        location = self._servers.ask("GET", f"{topic_path(topic)}/data-plane")
        plane = str(location["data_plane"])
        settings = self._settings(topic, plane, location)
        with self._lock:
            key = (plane, *(location.get(name) for name in ("admin_url", "service_url", "database_url")))
            if key not in self._clients:
                self._clients[key] = build_log_client(plane, settings)
            return self._clients[key]

    def close(self) -> None:
        """Close every log client. A later `of` creates others."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def _settings(self, topic: str, plane: str, location: Mapping[str, str | None]) -> PlaneSettings:
        """Return the settings of a log client for the topic. `location` is the worker's answer, with the
        addresses of the data plane `plane`. Raises Unsupported for a data plane that keeps the layout itself.
        """
        if plane not in _SETTINGS:
            raise Unsupported(
                f"{topic} is on data plane {plane}, which keeps the layout itself; use Pulsar's own client for scalable topics"
            )
        return _SETTINGS[plane](self, topic, location)

    def _on_pulsar(self, topic: str, location: Mapping[str, str | None]) -> PlaneSettings:
        """Return the settings for brokers, with the application's credentials, or without any if the
        application gave none. `location` has the brokers' addresses in `admin_url` and `service_url`. Raises
        Unsupported if the workers do not know the addresses.
        """
        auth = self._pulsar or PulsarAuth()
        admin_url, service_url = location.get("admin_url"), location.get("service_url")
        if admin_url is None or service_url is None:
            raise Unsupported(
                f"{topic} is on Pulsar, and the workers do not know the brokers' addresses; set CLEAVE_PULSAR_ADMIN_URL and "
                "CLEAVE_PULSAR_SERVICE_URL of each worker"
            )
        credentials = {item.name: getattr(auth, item.name) for item in fields(auth)}
        access = _Access(admin_url=admin_url, service_url=service_url, **credentials)
        return PlaneSettings(pulsar=access, call_timeout_seconds=self._call_timeout_seconds)

    def _on_embedded(self, topic: str, location: Mapping[str, str | None]) -> PlaneSettings:
        """Return the settings for embedded logs, with the application's login. `location` has the database's
        address in `database_url`. Raises Unsupported if the client has no login or the worker sends no
        address. With a CA file the server must prove its name.
        """
        auth, url = self._embedded, location.get("database_url")
        if auth is None or url is None:
            raise Unsupported(
                f"{topic} is on embedded logs; create the client with embedded=EmbeddedAuth(user=..., password=...)"
            )
        login = {"user": auth.user, "password": auth.password}
        if auth.ca_file is not None:
            login |= {"sslmode": "verify-full", "sslrootcert": auth.ca_file}
        address = DatabaseAddress.of(url).with_options({k: v for k, v in login.items() if v is not None})
        return PlaneSettings(embedded_url=address.uri, call_timeout_seconds=self._call_timeout_seconds)


_SETTINGS: Mapping[str, Callable[[Logs, str, Mapping[str, str | None]], PlaneSettings]] = {
    "embedded": Logs._on_embedded,
    "pulsar": Logs._on_pulsar,
}
