"""Reads settings from a scheduler's Spark connection: the master, and Spark's own settings.

Host, port and extras are read as in Airflow's Spark provider (`SparkSubmitHook`, `SparkConnectHook`), so a
connection for a user's own jobs works here too. Makes no connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from controller.domain.errors import InvalidInput

CONNECT_TYPE = "spark_connect"
GENERIC_TYPE = "generic"
"""Type that `airflow connections add` stores instead of `spark` and `spark_connect` if Airflow lacks its Spark provider."""
_ADDRESS = r"[^/,:;?#\s]+:\d+"
_MASTERS = re.compile(
    rf"none|yarn|local(\[(\d+|\*)(,\d+)?\])?|spark://{_ADDRESS}(,{_ADDRESS})*|k8s://(https?://)?[^/\s]+/?"
    rf"|sc://{_ADDRESS}(/(;.*)?)?"
)
_FORMS = (
    "local[n], spark://host:port, yarn, k8s://https://host:port, sc://host:port, or none for no Spark at all"
)
_AS_SPARK_SETTING = {"queue": "spark.yarn.queue", "namespace": "spark.kubernetes.namespace"}
_KERBEROS = ("principal", "keytab")


@dataclass(frozen=True)
class SparkConnection:
    """The fields of a connection of type `spark`, `spark_connect` or `generic`. In a URI the scheme is the type. A connection of type
    `generic` must have a complete master as its host; with a port, the host needs a scheme.
    """

    conn_id: str
    conn_type: str
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    extras: Mapping[str, object] = field(default_factory=dict, repr=False)

    def settings(self) -> dict[str, object]:
        """Return `spark_master` and `spark_conf`. Raises InvalidInput, without secrets in the message, for a
        master of another form and for extras that cannot be used.
        """
        master = self._connect_url() if self._is_connect else self._master()
        if not _MASTERS.fullmatch(master):
            raise InvalidInput(f"{self._label} gives the master {master.partition(';')[0]!r}; use {_FORMS}")
        return {"spark_master": master, "spark_conf": self._conf()}

    @property
    def _label(self) -> str:
        """Id and type of the connection, for messages."""
        return f"connection {self.conn_id!r} of type {self.conn_type}"

    @property
    def _is_connect(self) -> bool:
        """True if the connection is to a Spark Connect server, and may have a token."""
        is_connect_host = (self.host or "").startswith("sc://")
        return self.conn_type == CONNECT_TYPE or (self.conn_type == GENERIC_TYPE and is_connect_host)

    def _master(self) -> str:
        """Return the master: the host if it is a complete master, as forms have it; otherwise the host with
        the connection's type as its scheme. The port, if there is one, follows.
        """
        host = self.host or ""
        is_whole = self.conn_type in ("spark", GENERIC_TYPE) and host and ("://" in host or not self.port)
        master = host if is_whole else f"{self.conn_type}://{host}"
        return f"{master}:{self.port}" if self.port else master

    def _connect_url(self) -> str:
        """Return the URL of a Connect server, with login, token and `use_ssl` as its parameters."""
        host = self.host or ""
        url = host if "://" in host else f"sc://{host}"
        url = (f"{url}:{self.port}" if self.port else url).rstrip("/")
        use_ssl = self.extras.get("use_ssl")
        parameters = {
            "user_id": self.login or "",
            "token": self.password or "",
            "use_ssl": "" if use_ssl is None else str(use_ssl),
        }
        suffix = "".join(f";{name}={quote(value)}" for name, value in parameters.items() if value)
        return f"{url}/{suffix}" if suffix else url

    def _conf(self) -> dict[str, str]:
        """Return Spark's settings by name: the extras named `spark.…`, and the provider's extras `queue` and
        `namespace`, unless a `spark.…` extra has the same setting. Raises InvalidInput for deploy mode
        `cluster` and for Kerberos.
        """
        if self.extras.get("deploy-mode") == "cluster":
            raise InvalidInput(
                f"{self._label} has deploy-mode cluster, but the aggregation's driver is the task; use client"
            )
        if any(self.extras.get(name) for name in _KERBEROS):
            raise InvalidInput(
                f"{self._label} has a Kerberos {' or '.join(_KERBEROS)}, which Cleave does not read; "
                "give the task's process a ticket cache (KRB5CCNAME)"
            )
        conf = {name: str(value) for name, value in self.extras.items() if name.startswith("spark.")}
        provider_conf = {
            _AS_SPARK_SETTING[name]: str(self.extras[name])
            for name in _AS_SPARK_SETTING
            if self.extras.get(name)
        }
        return {**provider_conf, **conf}
