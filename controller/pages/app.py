"""The app of the pages: one route for each page, static files, and the dry run of a form.

The server that mounts the app controls access with `dependencies`; the app itself checks no rights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from pydantic import BaseModel
from sqlalchemy import Connection
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
from controller.pages.context import HERE, PageContext, render
from controller.pages.load_over_time import LONGEST_HOURS
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


class _Headed:
    """Middleware that adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def heading(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, heading)


class Wish(BaseModel):
    """A DAG and the values of its form."""

    dag_id: str
    conf: dict[str, Any]


def _reading(request: Request) -> Iterator[Connection]:
    """Yield the snapshot that a page reads. Raises StoreUnavailable if a statement takes too long."""
    context: PageContext = request.app.state.context
    with context.reading() as tx:
        yield tx


Reading = Annotated[Connection, Depends(_reading)]
Text = Annotated[str, Query(max_length=1_000)]
Id = Annotated[int, Query(ge=0, lt=2**63)]


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
    app.add_middleware(_Headed)
    app.include_router(router)
    app.add_exception_handler(CleaveError, _refused)
    app.add_exception_handler(RequestValidationError, _wrong_form)
    return app


@router.get("/")
def the_fleet(
    request: Request,
    tx: Reading,
    find: Text = "",
    show: Text = "",
    after: Annotated[int, Query(ge=0, lt=2**31)] = 0,
) -> HTMLResponse:
    """All topics, with the problems that need attention."""
    return render(request, "fleet.html", **fleet.page(tx, find, show, after))


@router.get("/topic")
def one_topic(
    request: Request, tx: Reading, name: Text, hours: Annotated[float, Query(gt=0, le=LONGEST_HOURS)] = 6.0
) -> HTMLResponse:
    """One topic over the last hours."""
    return render(request, "topic.html", **topic.page(tx, name, hours, datetime.now(UTC)))


@router.get("/segment")
def one_segment(request: Request, tx: Reading, name: Text, segment_id: Id) -> HTMLResponse:
    """One segment, as a page or as a part of its topic's page."""
    return render(request, "segment.html", **segment.page(tx, name, segment_id))


@router.get("/decisions")
def all_decisions(request: Request, tx: Reading) -> HTMLResponse:
    """The decision log."""
    return render(request, "decisions.html", **journal.decisions(tx, request.query_params))


@router.get("/decision")
def one_decision(request: Request, tx: Reading, decision_id: Id) -> HTMLResponse:
    """One decision with its evaluation input."""
    return render(request, "decision.html", **journal.decision(tx, decision_id))


@router.get("/operations")
def all_operations(request: Request, tx: Reading) -> HTMLResponse:
    """The operation journal."""
    return render(request, "operations.html", **journal.operations(tx, request.query_params))


@router.get("/operation")
def one_operation(request: Request, tx: Reading, operation_id: Id) -> HTMLResponse:
    """One operation, step by step."""
    return render(request, "operation.html", **journal.operation(tx, operation_id))


@router.get("/lag")
def lag(request: Request, name: Text, subscription: Text) -> HTMLResponse:
    """The lag of a subscription. The page requests it only on demand, because the data plane has to count."""
    context: PageContext = request.app.state.context
    cleave = context.application()
    topic = topic_name(name)
    rows = subscription_lag.lag(cleave.store, cleave.planes, topic, subscription)
    return render(request, "lag.html", topic=topic, subscription=subscription, rows=rows)


@router.get("/run")
def one_run(request: Request, tx: Reading, dag_id: Text, run_id: Text) -> HTMLResponse:
    """The requests and decisions of a DAG run: a tab of its page in Airflow."""
    return render(request, "run.html", **journal.run(tx, dag_id, run_id))


@router.get("/backtests")
def all_backtests(request: Request, tx: Reading) -> HTMLResponse:
    """Backtest runs, and the candidates that wait for one."""
    return render(request, "backtests.html", **backtests.page(tx))


@router.get("/backtest")
def one_backtest(request: Request, tx: Reading, run_id: Id) -> HTMLResponse:
    """Policies side by side."""
    return render(request, "backtest.html", **backtests.run(tx, run_id))


@router.get("/bundles")
def all_bundles(request: Request, tx: Reading, cluster: Text = "", namespace: Text = "") -> HTMLResponse:
    """Brokers, proposals, and the bundles of one namespace."""
    return render(request, "bundles.html", **bundles.page(tx, cluster, namespace))


@router.get("/approvals")
def all_approvals(request: Request, tx: Reading) -> HTMLResponse:
    """Approvals that wait for an answer, and answered ones."""
    return render(request, "approvals.html", **approvals.page(tx))


@router.get("/policy")
def one_policy(request: Request, tx: Reading, level: Text = "cluster") -> HTMLResponse:
    """The policy of a level, and the form that changes it."""
    return render(request, "policy.html", **policy.page(tx, level))


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
