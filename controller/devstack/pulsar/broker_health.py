"""Checks whether a broker that was started is ready for clients, over its admin REST API."""

from __future__ import annotations

from typing import Final

import requests

_TIMEOUT_SECONDS: Final = 5.0


def is_healthy(admin_url: str, token: str | None = None) -> bool:
    """Return True if the broker has passed its own check (a message written and read) and has `public/default`.

    A standalone broker answers a moment before it has created its cluster, tenant and namespace, in this order.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with requests.Session() as session:
            session.trust_env = False  # loopback never goes through a proxy
            return all(
                session.get(f"{admin_url}{path}", headers=headers, timeout=_TIMEOUT_SECONDS).ok
                for path in ("/admin/v2/brokers/health", "/admin/v2/namespaces/public/default")
            )
    except requests.RequestException:
        return False
