"""What is refused before anything of a request is read: one too many at once, and a body that is too large."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from controller.domain.whole_numbers import from_digits
from controller.entrypoints.web.refusals import json_answer

LARGEST_BODY_BYTES = 4 * 1024 * 1024
"""Of a request; a consumer that releases 65,536 buckets says less."""


class FewAtOnce:
    """Refuses what would be one too many, before anything of it is read. A stream counts until it ends."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._under_way >= self._most:
            reason = (
                f"this worker serves {self._most} requests and streams already; ask another one, or raise "
                "CLEAVE_SERVE_CONNECTIONS"
            )
            refusal = json_answer({"reason": reason, "kind": "StoreUnavailable"}, 503, {"Retry-After": "1"})
            await refusal(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1


class SmallRequests:
    """Refuses a body that is too large, or does not say how large it is, before anything of it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            length = headers.get(b"content-length", b"0").decode("latin-1")
            if b"transfer-encoding" in headers or from_digits(length, LARGEST_BODY_BYTES) is None:
                reason = f"a body of {LARGEST_BODY_BYTES} bytes at most, with its length in Content-Length"
                await json_answer({"reason": reason, "kind": "InvalidInput"}, 413)(scope, receive, send)
                return
        await self._app(scope, receive, send)
