"""Reads settings from a scheduler's connection to the admin API of a Pulsar cluster. Makes no connection.

`setting_precedence` of the provider's hooks adds them to a Cleave connection, whose own extras take precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class PulsarConnection:
    """The fields of a connection of type `pulsar_admin`. `scheme` is `http` or `https`. The method `settings`
    reads them.
    """

    conn_id: str
    scheme: str | None = None
    host: str | None = None
    port: int | None = None
    token: str | None = field(default=None, repr=False)
    extras: Mapping[str, object] = field(default_factory=dict)

    def settings(self) -> dict[str, object]:
        """Return `pulsar_admin_url` and the other settings. Raises InvalidInput for an unknown extra or
        without a host.
        """
        unknown = sorted(set(self.extras) - set(_EXTRAS))
        if unknown:
            raise InvalidInput(
                f"connection {self.conn_id!r} has unknown extras: {', '.join(unknown)}; "
                f"use {', '.join(_EXTRAS)}"
            )
        settings: dict[str, object] = {"pulsar_admin_url": self._admin_url()}
        if self.token:
            settings["pulsar_token"] = self.token
        return settings | {f"pulsar_{name}": value for name, value in self.extras.items()}

    def _admin_url(self) -> str:
        """Return the URL. A host with a scheme is unchanged. Otherwise each of several brokers (`one,two`)
        without a port gets `port`, and a token selects https unless the connection names a scheme. Raises
        InvalidInput without a host.
        """
        if not self.host:
            raise InvalidInput(f"connection {self.conn_id!r} has no host; enter the broker's host")
        if "://" in self.host:
            return self.host
        hosts = [host.strip() for host in self.host.split(",")]
        port = f":{self.port}" if self.port else ""
        has_token = bool(self.token or self.extras.get("token_file"))
        scheme = self.scheme or ("https" if has_token else "http")  # https keeps the token secret
        return f"{scheme}://" + ",".join(
            host if ":" in host.rpartition("]")[2] else host + port for host in hosts
        )
