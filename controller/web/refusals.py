"""Error answers: the status of each CleaveError, and a JSON body with a reason and a kind."""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from controller.domain.errors import (
    AccessDenied,
    AccessForbidden,
    CleaveError,
    Conflict,
    FencedOut,
    InvalidInput,
    LimitReached,
    LostRace,
    NotFound,
    Retryable,
    SessionExpired,
    TokenOutOfTime,
    Unsupported,
)
from controller.domain.formatting import shown
from controller.web.paths import NAMES, PREFIX

_STATUS: tuple[tuple[type[CleaveError], int], ...] = (
    (AccessDenied, 401),
    (TokenOutOfTime, 401),
    (AccessForbidden, 403),
    (NotFound, 404),
    (SessionExpired, 409),
    (LostRace, 409),
    (Conflict, 409),
    (FencedOut, 410),
    (InvalidInput, 412),
    (Unsupported, 422),
    (LimitReached, 429),
    (Retryable, 503),
)


class Refusal(BaseModel):
    """The reason why a request failed; `kind` is a name of docs/reference/errors.md."""

    reason: str = Field(
        examples=["topic topic://acme/shop/orders does not exist; create it or check the name"]
    )
    kind: str = Field(examples=["TopicNotFound"])


# FastAPI rebuilds a model for each answer that names it, which would take a quarter of a second at each start. Only one answer in
# `REFUSALS` names the model, and the others refer to its description.
_DOCUMENT = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": description, **({"model": Refusal} if status == 503 else _DOCUMENT)}
    for status, description in {
        400: "A name in the path is not valid, or the body is not JSON in UTF-8.",
        401: "The token is missing or not valid; `TokenOutOfTime` if a new token may be accepted.",
        403: "The token does not give the right.",
        404: "The named thing does not exist.",
        405: "The path does not support this method.",
        408: "The headers or the body took too long to arrive.",
        409: "The object is in a state that forbids the request, or was changed concurrently.",
        412: "A value is invalid in any state of the system.",
        413: "The body is too large, or its length is missing.",
        414: "The address is longer than 8 KiB.",
        422: "The data plane, or this process, cannot do it.",
        429: "The limit of concurrent computations is reached: retry after `Retry-After` seconds.",
        431: "A header is longer than 8 KiB, or all of them are larger than 32 KiB.",
        503: "Temporarily unavailable: retry after `Retry-After` seconds.",
    }.items()
}
"""Error answers that every route may give."""
LED: dict[int | str, dict[str, Any]] = {
    307: {"description": "Another worker leads the topic; `Location` is the same call there."},
    410: {"description": "This incarnation of the consumer has ended.", **_DOCUMENT},
}
"""Additional answers of routes that only the topic's leader serves."""


class OtherLeader(Exception):
    """Another worker leads the topic; the text of the error is its address."""


def answer_errors(app: FastAPI) -> None:
    """Make the app answer a CleaveError, RequestValidationError or HTTPException that is raised in a request with the JSON of `Refusal`,
    and OtherLeader with a redirect. Other errors are left to the framework.
    """
    app.add_exception_handler(CleaveError, _refusal)
    app.add_exception_handler(RequestValidationError, _wrong_form)
    app.add_exception_handler(HTTPException, _no_such_call)
    app.add_exception_handler(OtherLeader, _send_there)


def json_answer(document: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return the document as a JSON answer; instants become text."""
    return Response(msgspec.json.encode(document), status, headers=headers, media_type="application/json")


async def _refusal(request: HttpRequest, error: Exception) -> Response:
    """Answer a CleaveError with its status (500 if `_STATUS` has none), its message and its class; a Retryable also with `Retry-After`.
    Stores the message in the state of the request, for the audit.
    """
    refused = cast(CleaveError, error)
    request.state.refusal = refused.message
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(refused, Retryable):
        headers["Retry-After"] = str(math.ceil(refused.delay_seconds))
    return json_answer({"reason": refused.message, "kind": type(error).__name__}, status, headers)


async def _wrong_form(request: HttpRequest, error: Exception) -> Response:
    """Answer a request with an invalid value (`error` is a RequestValidationError): 400 if the first invalid value is
    a parameter of the path, otherwise 412. The reason names only the first invalid value. Stores the reason in the
    state of the request, for the audit.
    """
    first = cast(RequestValidationError, error).errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    is_name = first["loc"][0] == "path"
    reason = (
        f"{where} = {shown(first.get('input'))} is no name: {NAMES}"
        if is_name
        else f"{where}: {first['msg']}"
    )
    request.state.refusal = reason
    return json_answer({"reason": reason, "kind": "InvalidInput"}, 400 if is_name else 412)


async def _no_such_call(request: HttpRequest, error: Exception) -> Response:
    """Answer an HTTPException. Status 400, such as for a body that cannot be read, keeps its reason. Status 404, for
    a path that no route serves, becomes 400 below the API's prefix, because a name with a slash, even written as %2F,
    makes such a path; elsewhere 404 is kept. Any other status, such as 405 for another method, is kept. The reason
    then says that there is no such call.
    """
    http_error, path = cast(HTTPException, error), request.scope["path"]
    status = http_error.status_code
    if status == 400:
        return json_answer({"reason": http_error.detail, "kind": "InvalidInput"}, 400)
    if status == 404 and path.startswith(f"{PREFIX}/"):
        reason = f"{shown(path)} names no call here: {NAMES}, or the path is misspelt"
        return json_answer({"reason": reason, "kind": "InvalidInput"}, 400)
    kind = "NotFound" if status == 404 else "InvalidInput"
    return json_answer({"reason": f"{request.method} {shown(path)}: no such call", "kind": kind}, status)


async def _send_there(request: HttpRequest, error: Exception) -> Response:
    """Redirect the request (307) to the leader, whose address is the text of `error`, an OtherLeader. The path and the query are
    copied exactly as they were sent, because a path that is decoded or encoded again could name another topic.
    """
    path, query = request.scope["raw_path"], request.scope["query_string"]
    leader = str(error).encode()
    answer = Response(status_code=307)
    answer.raw_headers.append((b"location", leader + path + (b"?" + query if query else b"")))
    return answer
