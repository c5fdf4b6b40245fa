"""Addresses of servers in settings and applications."""

from __future__ import annotations

from urllib.parse import urlsplit

from controller.domain.errors import InvalidInput


def web_address(text: str, name: str) -> str:
    """Return the address `text`, which may have a path, without slashes at its end. Raises InvalidInput for an address
    that is not http or https, has no host or no valid port, or contains a user, a query, a fragment, white space or a
    character that is not printable. The message contains `name` but not the text, because the text may contain a password.
    """
    try:
        parts = urlsplit(text)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # `urlsplit` drops some white space, which the returned text still contains
        is_complete = is_complete and text.isprintable() and " " not in text
    except ValueError:
        is_complete, parts = False, urlsplit("")
    if parts.username is not None or "?" in text or "#" in text:
        raise InvalidInput(
            f"{name} contains a user or a query; give the address alone, and the token separately"
        )
    if not is_complete:
        raise InvalidInput(
            f"{name} is not the address of a server; write http://host:port or https://host:port"
        )
    return text.rstrip("/")
