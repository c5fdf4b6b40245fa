"""Callers of a worker over plain HTTP: the header of a token, and an administrator."""

from __future__ import annotations

import httpx

from controller.devstack.serving import token_of
from controller.web.access import Role


def bearer(token: str) -> dict[str, str]:
    """Return the header that carries the token."""
    return {"Authorization": f"Bearer {token}"}


def administrator(address: str) -> httpx.Client:
    """Return an HTTP client of Ada, who has the role admin."""
    headers = bearer(token_of(Role.ADMIN, subject="ada"))
    return httpx.Client(base_url=address, headers=headers, timeout=60.0)
