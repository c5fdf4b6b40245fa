"""The app of the pages: one route for each page, static files, and the dry run of a form.

The server that mounts the app controls access with `dependencies`; the app itself checks no rights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from pydantic import BaseModel

from controller.domain.errors import CleaveError, InvalidInput, NotFound, Retryable
from controller.domain.names import topic_name
from controller.pages import (
    approvals,
    backtests,
    bundles,
    fleet,
    form_previews,
    journal,
    policy,
    segment,
    topic,
)
from controller.pages.context import HERE, PageContext, Text, render
from controller.services import subscription_lag

router = APIRouter()
_STATUS: tuple[tuple[type[CleaveError], int], ...] = ((NotFound, 404), (Retryable, 503), (InvalidInput, 400))
_STATIC = {"pages.css": "text/css", "pages.js": "text/javascript"}
_EMPTY = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""Hash of an empty style element: plotly adds one, and its rules by script."""
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        f"style-src 'self' {_EMPTY}",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'self'",
    )
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
"""Headers of every answer. Airflow shows the pages in a frame from its own address; no other site may do so."""


async def _headed(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add `HEADERS` to the answer of a request."""
    response = await answer(request)
    response.headers.update(HEADERS)
    return response


class Wish(BaseModel):
    """A DAG and the values of its form."""

    dag_id: str
    conf: dict[str, Any]


def pages_app(context: PageContext, dependencies: Sequence[Any] = ()) -> FastAPI:
    """Return the app of the pages. FastAPI checks `dependencies` before every route. Errors of Cleave and invalid forms are answered with
    their reason.
    """
    app = FastAPI(
        title="Cleave",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # a redirect would lead to the host that the request names
        dependencies=list(dependencies),
    )
    app.state.context = context
    app.middleware("http")(_headed)
    app.include_router(router)
    app.add_exception_handler(CleaveError, _refused)
    app.add_exception_handler(RequestValidationError, _wrong_form)
    return app


def _page(template: str, read: Callable[..., dict[str, Any]]) -> Callable[..., HTMLResponse]:
    """Return the endpoint of a page: `read` returns the values for the template. Its parameters are those of the route."""

    def page(request: Request, values: dict[str, Any] = Depends(read)) -> HTMLResponse:
        return render(request, template, **values)

    return page


for _path, _template, _read in (
    ("/", "fleet.html", fleet.page),
    ("/topic", "topic.html", topic.page),
    ("/segment", "segment.html", segment.page),
    ("/decisions", "decisions.html", journal.decisions),
    ("/decision", "decision.html", journal.decision),
    ("/operations", "operations.html", journal.operations),
    ("/operation", "operation.html", journal.operation),
    ("/run", "run.html", journal.run),
    ("/backtests", "backtests.html", backtests.page),
    ("/backtest", "backtest.html", backtests.run),
    ("/bundles", "bundles.html", bundles.page),
    ("/approvals", "approvals.html", approvals.page),
    ("/policy", "policy.html", policy.page),
):
    router.add_api_route(_path, _page(_template, _read))


@router.get("/lag")
def lag(request: Request, name: Text, subscription: Text) -> HTMLResponse:
    """The lag of a subscription. The page requests it only on demand, because the data plane has to count."""
    context: PageContext = request.app.state.context
    cleave = context.application()
    topic = topic_name(name)
    rows = subscription_lag.lag(cleave.store, cleave.planes, topic, subscription)
    return render(request, "lag.html", topic=topic, subscription=subscription, rows=rows)


@router.post("/preview")
def preview(request: Request, wish: Wish) -> JSONResponse:
    """The dry run of a DAG's form."""
    context: PageContext = request.app.state.context
    return JSONResponse(form_previews.dry_run(context.application(), wish.dag_id, wish.conf))


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Styles and scripts; plotly.js comes from the installed package."""
    if name == "plotly.js":
        from plotly.offline import get_plotlyjs

        a_day = {"Cache-Control": "private, max-age=86400"}
        return Response(get_plotlyjs(), media_type="text/javascript", headers=a_day)
    if name not in _STATIC:
        raise NotFound(f"there is no file {name!r}")
    return FileResponse(HERE / "static" / name, media_type=_STATIC[name])


def _refused(request: Request, error: Exception) -> Response:
    """Answer an error of Cleave with its message and its status in `_STATUS`, otherwise 409."""
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 409)
    return _reason(request, str(error), status)


def _wrong_form(request: Request, error: Exception) -> Response:
    """Answer 400 with every invalid field and its error."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    reason = "; ".join(f"{'.'.join(map(str, problem['loc'][1:]))}: {problem['msg']}" for problem in problems)
    return _reason(request, reason, 400)


def _reason(request: Request, reason: str, status: int) -> Response:
    """Return the reason with the status: as JSON for a POST, otherwise as a page."""
    if request.method == "POST":
        return JSONResponse({"reason": reason}, status)
    page = render(request, "refused.html", reason=reason, status=status)
    page.status_code = status
    return page
