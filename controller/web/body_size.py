"""Refuses a body that is too large before the body is read, and a body with too many values before it is decoded."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from controller.domain.whole_numbers import from_digits
from controller.web.refusals import json_answer

LARGEST_BODY_BYTES = 4 * 1024 * 1024
"""Limit for the body of a request; the release of 65,536 buckets is smaller."""
MOST_BRACKETS, MOST_COMMAS = 2 * 65_536, 8 * 65_536
"""Limits for the opening brackets (`[` and `{`) and for the commas of a body, in texts too. They bound the number of values in the body. A
release of 65,536 buckets has half of each or less.
"""


def body_problem(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the requirement that the body announced by these headers does not meet, as a text. None if the body is accepted, or if the
    headers announce no body. Names of headers are in lower case.
    """
    announced = dict(headers)
    length = announced.get(b"content-length", b"0").decode("latin-1")
    if b"transfer-encoding" in announced or from_digits(length, LARGEST_BODY_BYTES) is None:
        return f"a body of {LARGEST_BODY_BYTES} bytes at most, with its length in Content-Length"
    return None


def has_too_many_values(body: bytes) -> bool:
    """Return True if the body exceeds `MOST_BRACKETS` or `MOST_COMMAS`. Decoding and checking such a body would occupy the event loop for
    seconds.
    """
    return body.count(b"[") + body.count(b"{") > MOST_BRACKETS or body.count(b",") > MOST_COMMAS


class SmallRequests:
    """Middleware that refuses a body that is too large or has no length. A worker's own server does so earlier, when it reads the headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 413 if the headers announce a body that is too large or has no length; otherwise call the app."""
        problem = body_problem(scope["headers"]) if scope["type"] == "http" else None
        if problem is not None:
            await json_answer({"reason": problem, "kind": "InvalidInput"}, 413)(scope, receive, send)
            return
        await self._app(scope, receive, send)
