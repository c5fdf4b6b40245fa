"""HTTP proxies in settings and applications. Proxies from the environment (`HTTP_PROXY` and the like) are ignored: see
ADR 0023.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from controller.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that every call of one client uses."""

    url: str = field(repr=False)
    """Address with user and password: never log it."""
    label: str
    """Address without user and password, for messages."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the proxy with this address; surrounding white space is removed. Raises InvalidInput unless the text
        is the http or https address of a host in printable ASCII, without a path other than `/`, a query, a fragment or
        port 0; a user and a password are allowed. The message does not contain the text, because the text may contain a
        password.
        """
        url = text.strip()
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        is_printable = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme not in ("http", "https") or not host or port == 0 or not is_printable:
            raise InvalidInput(
                "this is not the address of a proxy; write http://host:port or https://host:port"
            )
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise InvalidInput("the address of a proxy has no path and no query; write http://host:port")
        host_text = f"[{host}]" if ":" in host else host
        return cls(url, f"{parts.scheme}://{host_text}{'' if port is None else f':{port}'}")


def through(proxy: Proxy | None) -> str:
    """Return the part of a message that names the proxy; empty without a proxy."""
    return "" if proxy is None else f" through proxy {proxy.label}"
