"""Asks an ASGI app in this process, without a server, as a browser would: it follows where it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx


class AppClient:
    """What an app raises itself is answered with 500, as a server does. Each request has an event loop of its own."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """`options` are those of httpx: `params`, `json`, `headers`."""
        return asyncio.run(self._ask(method, path, options))

    async def _ask(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(
            transport=self._transport, base_url="http://app", follow_redirects=True
        ) as client:
            return await client.request(method, path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """See `request`."""
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        """See `request`."""
        return self.request("POST", path, **options)
