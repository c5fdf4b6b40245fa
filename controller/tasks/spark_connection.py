"""Reads settings from a scheduler's Spark connection: the master, and Spark's own settings.

Host, port and extras are read as in Airflow's Spark provider (`SparkSubmitHook`, `SparkConnectHook`), so a
connection for a user's own jobs works here too. Makes no connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
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


def spark_settings(
    conn_id: str,
    conn_type: str,
    host: str | None = None,
    port: int | None = None,
    login: str | None = None,
    password: str | None = None,
    extras: Mapping[str, object] = MappingProxyType({}),
) -> dict[str, object]:
    """Return `spark_master` and `spark_conf` for the fields of a connection of type `spark`, `spark_connect` or `generic`.
    In a URI the scheme is the type. A connection of type `generic` must have a complete master as its host; with a port,
    the host needs a scheme. Raises InvalidInput, without secrets in the message, for a master of another form and for
    extras that cannot be used.
    """
    host = host or ""
    label = f"connection {conn_id!r} of type {conn_type}"
    is_connect = conn_type == CONNECT_TYPE or (conn_type == GENERIC_TYPE and host.startswith("sc://"))
    if is_connect:
        # A connection to a Spark Connect server may have a token.
        parameters = {"user_id": login, "token": password, "use_ssl": extras.get("use_ssl")}
        master = _connect_url(host, port, parameters)
    else:
        master = _master(conn_type, host, port)
    if not _MASTERS.fullmatch(master):
        raise InvalidInput(f"{label} gives the master {master.partition(';')[0]!r}; use {_FORMS}")
    return {"spark_master": master, "spark_conf": _conf(label, extras)}


def _master(conn_type: str, host: str, port: int | None) -> str:
    """Return the master: the host if it is a complete master, as forms have it; otherwise the host with
    the connection's type as its scheme. The port, if there is one, follows.
    """
    is_whole = conn_type in ("spark", GENERIC_TYPE) and host and ("://" in host or not port)
    master = host if is_whole else f"{conn_type}://{host}"
    return f"{master}:{port}" if port else master


def _connect_url(host: str, port: int | None, parameters: Mapping[str, object]) -> str:
    """Return the URL of a Connect server with the parameters that have a value."""
    url = host if "://" in host else f"sc://{host}"
    url = (f"{url}:{port}" if port else url).rstrip("/")
    suffix = "".join(
        f";{name}={quote(str(value))}" for name, value in parameters.items() if value not in (None, "")
    )
    return f"{url}/{suffix}" if suffix else url


def _conf(label: str, extras: Mapping[str, object]) -> dict[str, str]:
    """Return Spark's settings by name: the extras named `spark.…`, and the provider's extras `queue` and
    `namespace`, unless a `spark.…` extra has the same setting. `label` names the connection in messages. Raises
    InvalidInput for deploy mode `cluster` and for Kerberos.
    """
    if extras.get("deploy-mode") == "cluster":
        raise InvalidInput(
            f"{label} has deploy-mode cluster, but the aggregation's driver is the task; use client"
        )
    if any(extras.get(name) for name in _KERBEROS):
        raise InvalidInput(
            f"{label} has a Kerberos {' or '.join(_KERBEROS)}, which Cleave does not read; "
            "give the task's process a ticket cache (KRB5CCNAME)"
        )
    conf = {name: str(value) for name, value in extras.items() if name.startswith("spark.")}
    provider_conf = {
        setting: str(extras[name]) for name, setting in _AS_SPARK_SETTING.items() if extras.get(name)
    }
    return {**provider_conf, **conf}
