"""Reads settings from a scheduler's connection to the admin API of a Pulsar cluster. Makes no connection.

`setting_precedence` of the provider's hooks adds them to a Cleave connection, whose own extras take precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from controller.domain.errors import InvalidInput

_EXTRAS = (
    "service_url",
    "token_file",
    "ca_file",
    "cert_file",
    "key_file",
    "verify_hostname",
    "broker_url",
    "cluster",
)
"""Extras that are settings; the names of the settings begin with `pulsar_`."""


def pulsar_settings(
    conn_id: str,
    scheme: str | None = None,
    host: str | None = None,
    port: int | None = None,
    token: str | None = None,
    extras: Mapping[str, object] = MappingProxyType({}),
) -> dict[str, object]:
    """Return `pulsar_admin_url` and the other settings for the fields of a connection of type `pulsar_admin`. `scheme` is
    `http` or `https`. Raises InvalidInput for an unknown extra or without a host.
    """
    unknown = sorted(set(extras) - set(_EXTRAS))
    if unknown:
        raise InvalidInput(
            f"connection {conn_id!r} has unknown extras: {', '.join(unknown)}; use {', '.join(_EXTRAS)}"
        )
    if not host:
        raise InvalidInput(f"connection {conn_id!r} has no host; enter the broker's host")
    has_token = bool(token or extras.get("token_file"))
    scheme = scheme or ("https" if has_token else "http")  # https keeps the token secret
    settings: dict[str, object] = {"pulsar_admin_url": _admin_url(scheme, host, port)}
    if token:
        settings["pulsar_token"] = token
    return settings | {f"pulsar_{name}": value for name, value in extras.items()}


def _admin_url(scheme: str, host: str, port: int | None) -> str:
    """Return the URL. A host with a scheme is unchanged. Otherwise each of several brokers (`one,two`) without a port gets
    `port`.
    """
    if "://" in host:
        return host
    port_text = f":{port}" if port else ""
    return f"{scheme}://" + ",".join(
        broker if ":" in broker.rpartition("]")[2] else broker + port_text
        for broker in map(str.strip, host.split(","))
    )
