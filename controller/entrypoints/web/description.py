"""Serves the description of the app (`/openapi.json`), to everybody: made once, in a thread, since making it takes seconds in which no
other request would be answered.
"""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

PATH = "/openapi.json"


def describe(app: FastAPI) -> None:
    """Add the route."""
    making: list[asyncio.Task[bytes]] = []

    def document(root_path: str) -> bytes:
        described = app.openapi()
        servers = {"servers": [{"url": root_path}]} if root_path else {}
        return msgspec.json.encode({**described, **servers})

    async def description(request: HttpRequest) -> Response:
        if not making:
            root_path = request.scope.get("root_path", "").rstrip("/")  # the same for each request of an app
            making.append(asyncio.create_task(run_in_threadpool(document, root_path)))
        return Response(await asyncio.shield(making[0]), media_type="application/json")

    app.add_route(PATH, description, include_in_schema=False)
