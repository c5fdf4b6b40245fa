"""Addresses of servers as settings and applications name them."""

from __future__ import annotations

from urllib.parse import urlsplit

from controller.domain.errors import InvalidInput


def web_address(text: str, name: str) -> str:
    """Return the address without a slash at its end. Raises InvalidInput, which says `name` and not the text: it may hold a password."""
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole, parts = False, urlsplit("")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidInput(
            f"{name} has a user or a query in it; give the address alone, and the token apart from it"
        )
    if not is_whole:
        raise InvalidInput(f"{name} is no address of a server; write http://host:port or https://host:port")
    return text.rstrip("/")
