"""Records every requested change, whether it was done, refused or a dry run, and every access that is denied.

The row is written before the answer is sent. If the row cannot be written, the change is logged and the request is still answered, because
the change is done. Calls of consumers and brokers are not changes of a person; only their denials are recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.actions.rights import Right
from controller.domain.errors import CleaveError
from controller.store.audit import AuditRow
from controller.telemetry import get_logger
from controller.web.access import Grant

log = get_logger(__name__)

WriteAudit = Callable[[AuditRow], None]
_CHANGES = (Right.OPERATE, Right.ADMINISTER)
_DENIED = (401, 403)
REPEATS_AFTER_SECONDS = 60.0
"""Seconds before an equal denial is recorded again, so that a client that retries for ever does not fill the table."""
_DENIALS_KNOWN = 10_000
_LONGEST = 2_000
_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
"""Texts that pydantic reads as True."""


class Audited:
    """Middleware that records changes and denials. A change is a request of the right OPERATE or ADMINISTER with another method than GET
    and HEAD, and a denial is an answer 401 or 403. `write` is called in a thread; a CleaveError that it raises is logged.
    """

    def __init__(self, app: ASGIApp, write: WriteAudit) -> None:
        self._app, self._write = app, write
        self._denials: dict[tuple[object, ...], float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app. Record the request before the answer begins, if the request is a change or was denied. If the
        app raises an error before the answer begins, record a change with status 500; the error is raised in any
        case. A record that cannot be written is only logged.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})

        has_begun = False

        async def send_after_note(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                await self._note(scope, state, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_after_note)
        except Exception:
            if not has_begun:
                await self._note(scope, state, 500)
            raise

    async def _note(self, scope: Scope, state: dict[str, Any], status: int) -> None:
        """Record the request if it is a change or was denied, unless an equal denial was recorded recently
        (`_is_known`). `state` is the request's `scope["state"]`. If `write` raises a CleaveError, the error is
        logged, not raised. A denial that could not be written is forgotten, so that the next denial with the same
        subject, address, method, route and status is recorded.
        """
        if status not in _DENIED and not _is_change(scope, state):
            return
        row = _row(scope, state, status)
        if status in _DENIED and self._is_known(row):
            return
        try:
            await run_in_threadpool(self._write, row)
        except CleaveError as error:
            self._denials.pop(_denial_key(row), None)
            log.error("audit not written", row=row, error=str(error))

    def _is_known(self, row: AuditRow) -> bool:
        """Return True if a denial with the same subject, address, method, route and status was remembered within the
        last `REPEATS_AFTER_SECONDS`. Otherwise remember the denial of `row`, and return False. If `_DENIALS_KNOWN`
        denials are remembered already, all of them are forgotten first.
        """
        key = _denial_key(row)
        now = time.monotonic()
        before = self._denials.get(key)
        if before is not None and now - before < REPEATS_AFTER_SECONDS:
            return True
        if len(self._denials) >= _DENIALS_KNOWN:
            self._denials.clear()
        self._denials[key] = now
        return False


def _denial_key(row: AuditRow) -> tuple[object, ...]:
    """Return the fields in which equal denials agree."""
    return (row.subject, row.address, row.method, row.act, row.status)


def _is_change(scope: Scope, state: dict[str, Any]) -> bool:
    """Return True if the request uses a right to change something, with any method but GET and HEAD."""
    return scope["method"] not in ("GET", "HEAD") and state.get("right") in _CHANGES


def _is_dry_run(query: str) -> bool:
    """Return True if the last `dry_run` of the query requests a dry run, even if the rest of the request is invalid."""
    value = parse_qs(query).get("dry_run", [""])[-1]
    return value.lower() in _TRUE


def _row(scope: Scope, state: dict[str, Any], status: int) -> AuditRow:
    """Return the row of the audit for the request. The path has no query and at most `_LONGEST` characters. Subject and role are None if
    the sender was not identified.
    """
    grant: Grant | None = state.get("grant")
    path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")  # a query may hold a secret
    route = scope.get("route")
    return AuditRow(
        subject=None if grant is None else grant.subject,
        role=None if grant is None else grant.role.value,
        address=scope["client"][0] if scope.get("client") else None,
        method=scope["method"],
        path=path[:_LONGEST].replace("\0", " "),
        act=getattr(route, "name", None) or "unknown",
        status=status,
        reason=state.get("refusal"),
        request_key=state.get("request_key"),
        dry_run=_is_dry_run(scope["query_string"].decode("latin-1")),
    )
