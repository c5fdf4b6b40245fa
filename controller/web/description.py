"""Serves the description of the app without a token: as a page (`/docs`) and as a document (`/openapi.json`). The document is built once, in
a thread, because building takes seconds in which the event loop would answer no other request.
"""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import fastapi_offline
import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.staticfiles import StaticFiles

from controller.domain.errors import Retryable
from controller.questions.row_schemas import row_schemas
from controller.web.questions import describe_rows
from controller.web.route_rights import rights_of

PATH = "/openapi.json"
PAGE_PATH = "/docs"
_FILES_PATH = f"{PAGE_PATH}/files"
_FILES = Path(fastapi_offline.__file__).parent / "static"
"""Swagger UI from a wheel, because the browser of an operator may not reach a content delivery network."""


def _with_columns(app: FastAPI) -> dict[str, Any]:
    """Return a copy of the app's OpenAPI document, in which the description of each call names its required right, and each question that
    returns the rows of a view unchanged (without `present`) has the columns of the view. The columns are read from the database, and left
    out while PostgreSQL is unavailable.
    """
    described = copy.deepcopy(app.openapi())  # the app keeps its document, and a later build begins with it
    _name_rights(app, described)
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


def _name_rights(app: FastAPI, described: dict[str, Any]) -> None:
    """Append the required right to the description of each call in the document `described`. Changes `described`."""
    for route in app.routes:
        if isinstance(route, APIRoute) and route.path in described["paths"]:
            for method in route.methods:
                call = described["paths"][route.path][method.lower()]
                call["description"] = (
                    f"{call.get('description', '')}\n\nRequired right: **{rights_of(route)[0].value}**."
                )


def _has_failed(task: asyncio.Task[bytes]) -> bool:
    """Return True if the task has ended without a result."""
    return task.done() and (task.cancelled() or task.exception() is not None)


def describe(app: FastAPI) -> None:
    """Add routes to the app for the page, the page's files and the document. The document is built in a thread at the
    first request, and kept for the life of the app. If PostgreSQL was unavailable during the build, the kept document
    lacks the columns of the views. After a failed build, whose request fails, the next request builds again.
    """
    making: list[asyncio.Task[bytes]] = []

    def document(root_path: str) -> bytes:
        described = _with_columns(app)
        servers = {"servers": [{"url": root_path}]} if root_path else {}
        return msgspec.json.encode({**described, **servers})

    async def description(request: HttpRequest) -> Response:
        if not making or _has_failed(making[0]):
            root_path = request.scope.get("root_path", "").rstrip("/")  # the same for each request of an app
            making[:] = [asyncio.create_task(run_in_threadpool(document, root_path))]
        return Response(await asyncio.shield(making[0]), media_type="application/json")

    async def documentation(request: HttpRequest) -> Response:
        root_path = request.scope.get("root_path", "").rstrip("/")
        files = f"{root_path}{_FILES_PATH}"
        return get_swagger_ui_html(
            openapi_url=f"{root_path}{PATH}",
            title=app.title,
            swagger_js_url=f"{files}/swagger-ui-bundle.js",
            swagger_css_url=f"{files}/swagger-ui.css",
            swagger_favicon_url=f"{files}/favicon.png",
        )

    app.add_route(PATH, description, include_in_schema=False)
    app.add_route(PAGE_PATH, documentation, include_in_schema=False)
    app.mount(_FILES_PATH, StaticFiles(directory=_FILES))
