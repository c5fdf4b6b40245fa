"""Reads database URLs for all processes as libpq does, with one host or several.

The parameters of a `DatabaseAddress` are those of libpq. The URL form in which SQLAlchemy names several hosts
(`?host=a:5432&host=b:5432`) is refused, because libpq uses only the last `host` of a URL.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from controller.domain.errors import InvalidInput
from controller.domain.whole_numbers import from_digits

if TYPE_CHECKING:
    from sqlalchemy import URL

FORM = "postgresql://user:password@host:port/database"
FORM_OF_SEVERAL_HOSTS = (
    "postgresql://user:password@host1:5432,host2:5432/database?target_session_attrs=read-write"
)
_SCHEMES = ("postgresql", "postgres")
_UNKNOWN_PARAMETER = re.compile(r'invalid URI query parameter: "([a-z_]+)"')
_PARAMETER_NAMES = re.compile(r"[?&]([^=&]*)=")
_IN_AUTHORITY = ("user", "password", "host", "port", "dbname")
_PUBLIC = ("host", "port", "dbname", "sslmode", "target_session_attrs")
"""Parameters that contain neither a login nor a file of this machine."""


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The address of one database, with the login. Immutable."""

    parameters: Mapping[str, str] = field(repr=False)
    """Connection parameters by libpq's names. They include secrets: never log them."""

    @classmethod
    def of(cls, url: str | URL | DatabaseAddress) -> DatabaseAddress:
        """Return the address that any `postgresql`, `postgres` or `postgresql+driver` URL gives. A DatabaseAddress is returned
        as it is.

        Raises InvalidInput for another URL, for a repeated parameter, for malformed hosts or ports, and, if `url` is a text, for a
        parameter that libpq does not know. The message quotes no part that may belong to a password.
        """
        if isinstance(url, DatabaseAddress):
            return url
        parameters = _read(url) if isinstance(url, str) else _parameters_of(url)
        _check_hosts(parameters)
        return cls(parameters)

    @property
    def servers(self) -> tuple[tuple[str, str], ...]:
        """Host and port of each server in libpq's order; an empty text stands for libpq's default."""
        hosts = self.parameters.get("host", "").split(",")
        ports = self.parameters.get("port", "").split(",")
        return tuple(zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=True))

    @property
    def uri(self) -> str:
        """The address as a libpq URI. It includes secrets: never log it."""
        options = {name: value for name, value in self.parameters.items() if name not in _IN_AUTHORITY}
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
        password = self.parameters.get("password")
        return self._uri(None if password is None else quote(password, safe="")) + (query and f"?{query}")

    @property
    def label(self) -> str:
        """The address for messages, with `***` for the password and without options."""
        return self._uri("***" if "password" in self.parameters else None)

    @property
    def without_login(self) -> DatabaseAddress:
        """The address for another program with its own login: only the servers, the database, `sslmode` and
        `target_session_attrs`.
        """
        return replace(self, parameters={k: v for k, v in self.parameters.items() if k in _PUBLIC})

    def with_options(self, options: Mapping[str, str]) -> DatabaseAddress:
        """Return the address with these connection parameters added. They replace parameters of the address with the same names. Raises
        InvalidInput for a parameter that libpq does not know, and for malformed hosts or ports.
        """
        return self.of(DatabaseAddress({**self.parameters, **options}).uri)

    def starting_with(self, server: tuple[str, str]) -> Self:
        """Return the address with `server`, which is one of `servers`, as the first server to try. The other servers keep
        their order.
        """
        order = sorted(self.servers, key=lambda other: other != server)
        hosts, ports = (",".join(texts) for texts in zip(*order, strict=True))
        return replace(self, parameters={**self.parameters, "host": hosts, "port": ports})

    def _uri(self, password: str | None) -> str:
        """Return the libpq URI without options. `password` is percent-encoded; None leaves the password out."""
        user = quote(self.parameters.get("user", ""), safe="")
        login = user if password is None else f"{user}:{password}"
        servers = ",".join(_authority(host, port) for host, port in self.servers)
        database = quote(self.parameters.get("dbname", ""), safe="")
        return f"postgresql://{login and f'{login}@'}{servers}/{database}"


def authority(host: str, port: int | None) -> str:
    """Return the server part of a libpq URI from two fields of a form. `DatabaseAddress.of` checks the result.

    `host` names one server or several, separated by commas, each with or without a port. `port` is the port of servers without
    their own port; None or 0: they get none.
    """
    servers = (_split(server.strip()) for server in host.split(","))
    return ",".join(_authority(name, own or (str(port) if port else "")) for name, own in servers)


def _split(server: str) -> tuple[str, str]:
    """Return the host, without brackets, and the port of one server that a person has typed; the port is empty if no port was
    typed. A text after the last colon that is not a number belongs to the host.
    """
    name, _, port = server.rpartition(":")
    if server.startswith("/") or from_digits(port) is None or (":" in name and not name.endswith("]")):
        return server.strip("[]"), ""
    return name.strip("[]"), port


def _authority(host: str, port: str) -> str:
    """Return one server as a URI has it: the host percent-encoded, or in brackets if it is an IPv6 address, and the port
    unless `port` is empty.
    """
    name = f"[{host}]" if ":" in host and not host.startswith("/") else quote(host, safe="")
    return f"{name}:{port}" if port else name


def _read(url: str) -> dict[str, str]:
    """Return the libpq parameters of a database URL. Raises InvalidInput if libpq cannot read the URL, or if the URL is not
    PostgreSQL's or repeats a parameter.
    """
    from psycopg2 import ProgrammingError
    from psycopg2.extensions import parse_dsn

    scheme, separator, after_scheme = url.partition("://")
    if not separator:
        raise InvalidInput(f"the database URL cannot be read; write {FORM}")
    if scheme.partition("+")[0] not in _SCHEMES:
        raise InvalidInput(f"{scheme}:// is not PostgreSQL; give a postgresql:// database URL")
    _refuse_repeated(Counter(_PARAMETER_NAMES.findall(after_scheme)))
    try:
        return dict(parse_dsn(f"postgresql://{after_scheme}"))
    except ProgrammingError as error:
        unknown_parameter = _UNKNOWN_PARAMETER.search(str(error))
        if unknown_parameter is not None:
            reason = f"libpq knows no parameter {unknown_parameter[1]!r} of a database URL; leave it out"
        else:
            reason = f"the database URL cannot be read; write {FORM}, with % / ? # @ : of a name or password percent-encoded"
        raise InvalidInput(reason) from None  # the cause quotes parts of the URL


def _parameters_of(url: URL) -> dict[str, str]:
    """Return the libpq parameters of an SQLAlchemy URL, without empty ones among user, password, host, port and database.
    Raises InvalidInput if the URL is not PostgreSQL's or repeats a parameter.
    """
    if url.drivername.partition("+")[0] not in _SCHEMES:
        raise InvalidInput(f"{url.drivername}:// is not PostgreSQL; give a postgresql:// database URL")
    options = {name: value for name, value in url.query.items() if isinstance(value, str)}
    _refuse_repeated(Counter(dict.fromkeys(url.query.keys() - options.keys(), 2)))
    named = {
        "user": url.username,
        "password": url.password,
        "host": url.host,
        "port": None if url.port is None else str(url.port),
        "dbname": url.database,
    }
    return {**{name: value for name, value in named.items() if value}, **options}


def _refuse_repeated(names: Counter[str]) -> None:
    """Raise InvalidInput if a parameter of the URL has a count above 1."""
    repeated = sorted(name for name, count in names.items() if count > 1)
    if repeated:
        raise InvalidInput(
            f"the database URL gives {repeated[0]!r} more than once; name several hosts as in {FORM_OF_SEVERAL_HOSTS}"
        )


def _check_hosts(parameters: Mapping[str, str]) -> None:
    """Raise InvalidInput if a port is neither empty nor a number from 1 to 65535, if there are several ports and not as many as hosts, or
    if a host is malformed.
    """
    hosts, ports = parameters.get("host", "").split(","), parameters.get("port", "").split(",")
    if any(port and not from_digits(port, 65_535) for port in ports):
        raise InvalidInput(  # the text may be a piece of the password
            "a port in the database URL is not a number from 1 to 65535; percent-encode / ? # @ : in a name or password"
        )
    if len(ports) not in (1, len(hosts)):
        raise InvalidInput(
            f"the database URL has {len(ports)} ports for {len(hosts)} hosts; give one port per host"
        )
    if not all(_is_host(host) for host in hosts):
        raise InvalidInput(
            f"a host in the database URL is not a name, address or socket directory; write {FORM_OF_SEVERAL_HOSTS}"
        )


def _is_host(host: str) -> bool:
    """Return True for a name, an IP address, or a socket directory or abstract socket; False for a text that
    contains a port or a login.
    """
    if ":" not in host and "@" not in host:
        return True
    if host.startswith(("/", "@")):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
