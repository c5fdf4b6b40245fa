"""Calls an ASGI app in this process, without a server, and follows redirects as a browser does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx


class AppClient:
    """Client of one app. An error that the app raises is answered with 500, as by a server. Each request has an event loop of its own."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return the answer. `options` are those of httpx: `params`, `json`, `headers`."""
        return asyncio.run(self._ask(method, path, options))

    async def _ask(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(
            transport=self._transport, base_url="http://app", follow_redirects=True
        ) as client:
            return await client.request(method, path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Return the answer to a GET request."""
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        """Return the answer to a POST request."""
        return self.request("POST", path, **options)
