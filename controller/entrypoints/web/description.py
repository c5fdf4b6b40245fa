"""Serves the description of the app (`/openapi.json`), to everybody: made once, in a thread, since making it takes seconds in which no
other request would be answered.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from controller.domain.errors import Retryable
from controller.entrypoints.web.questions import describe_rows
from controller.questions.columns import row_schemas

PATH = "/openapi.json"


def _with_columns(app: FastAPI) -> dict[str, Any]:
    """Return the description with the columns of the views that questions read; without them while the database is away."""
    described = app.openapi()
    try:
        with app.state.served.api.store.transaction() as tx:
            schemas = row_schemas(tx)
    except Retryable:
        return described
    components = described["components"]["schemas"]
    for call in (call for path in described["paths"].values() for call in path.values()):
        view = call.pop("x-view", None)
        if view in schemas:
            components[view] = schemas[view]
            answer = call["responses"]["200"]["content"]["application/json"]
            answer["schema"] = describe_rows(answer["schema"], view)
    return described


def describe(app: FastAPI) -> None:
    """Add the route."""
    making: list[asyncio.Task[bytes]] = []

    def document(root_path: str) -> bytes:
        described = _with_columns(app)
        servers = {"servers": [{"url": root_path}]} if root_path else {}
        return msgspec.json.encode({**described, **servers})

    async def description(request: HttpRequest) -> Response:
        if not making:
            root_path = request.scope.get("root_path", "").rstrip("/")  # the same for each request of an app
            making.append(asyncio.create_task(run_in_threadpool(document, root_path)))
        return Response(await asyncio.shield(making[0]), media_type="application/json")

    app.add_route(PATH, description, include_in_schema=False)
