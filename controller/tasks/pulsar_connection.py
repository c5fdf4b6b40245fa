"""The settings in a scheduler's connection to the admin API of a Pulsar cluster. Connects to nothing."""

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
"""Extras that are settings; there they begin with `pulsar_`."""


@dataclass(frozen=True)
class PulsarConnection:
    """The fields of a connection of type `pulsar_admin`; `scheme` is `http` or `https`."""

    conn_id: str
    scheme: str | None = None
    host: str | None = None
    port: int | None = None
    token: str | None = field(default=None, repr=False)
    extras: Mapping[str, object] = field(default_factory=dict)

    def settings(self) -> dict[str, object]:
        """`pulsar_admin_url` and what else is given. Raises InvalidInput for a field that is none."""
        unknown = sorted(set(self.extras) - set(_EXTRAS))
        if unknown:
            raise InvalidInput(
                f"connection {self.conn_id!r} has extras that are not read: {', '.join(unknown)}; "
                f"there are {', '.join(_EXTRAS)}"
            )
        found: dict[str, object] = {"pulsar_admin_url": self._admin_url()}
        if self.token:
            found["pulsar_token"] = self.token
        return found | {f"pulsar_{name}": value for name, value in self.extras.items()}

    def _admin_url(self) -> str:
        """A host that is whole stays as it is. Else each of several brokers (`one,two`) gets the port it lacks."""
        if not self.host:
            raise InvalidInput(f"connection {self.conn_id!r} names no host; give the broker's")
        if "://" in self.host:
            return self.host
        hosts = [one.strip() for one in self.host.split(",")]
        port = f":{self.port}" if self.port else ""
        has_token = bool(self.token or self.extras.get("token_file"))
        scheme = self.scheme or ("https" if has_token else "http")  # a token is not shown to whoever listens
        return f"{scheme}://" + ",".join(
            one if ":" in one.rpartition("]")[2] else one + port for one in hosts
        )
