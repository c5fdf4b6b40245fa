"""Records every requested change, whether it was done, refused or a dry run, and every access that is denied.

The row is written before the answer is sent. If the row cannot be written, the change is logged and the request is still answered, because
the change is done. Calls of consumers and brokers are not changes of a person; only their denials are recorded.

Denials are bounded, so that neither a client that retries for ever nor a sender without a token fills the table. A worker records equal
denials once a minute, and at most `MOST_OF_SENDER` denials of a sender a minute. A sender is a subject or, without a valid token, a network.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.actions.rights import Right
from controller.domain.errors import CleaveError
from controller.store.audit import AuditRow
from controller.telemetry import get_logger
from controller.web.access import Grant
from controller.web.networks import network_of

log = get_logger(__name__)

WriteAudit = Callable[[AuditRow], None]
Sender = tuple[str | None, str | None]
"""Subject, or network of a sender without a valid token; both None: all senders without a valid token."""
_CHANGES = (Right.OPERATE, Right.ADMINISTER)
_DENIED = (401, 403)
REMEMBERED_SECONDS = 60.0
"""Seconds for which recorded denials are remembered. All of them are forgotten at once."""
MOST_OF_SENDER = 100
"""Limit of the denials of one sender that are recorded within a minute. The reason of the last says that there may be more."""
MOST_WITHOUT_TOKEN = 1_000
"""Limit of the denials of all senders without a valid token that are recorded within a minute."""
_LONGEST = 2_000
_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
"""Texts that pydantic reads as True."""


class Audited:
    """Middleware that records changes and denials. A change is a request of the right OPERATE or ADMINISTER with another method than GET
    and HEAD, and a denial is an answer 401 or 403. `write` is called in a thread; a CleaveError that it raises is logged.
    """

    def __init__(self, app: ASGIApp, write: WriteAudit) -> None:
        self._app, self._write = app, write
        self._denials: set[tuple[object, ...]] = set()
        self._counts: Counter[Sender] = Counter()
        self._forgets_at = 0.0

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
        """Record the request if it is a change or a denial that `_bounded` admits. `state` is the request's
        `scope["state"]`. If `write` raises a CleaveError, the error is logged, not raised. A denial that could not be
        written is forgotten, so that the next equal denial is recorded.
        """
        if status not in _DENIED and not _is_change(scope, state):
            return
        noted = _row(scope, state, status)
        row = self._bounded(noted) if status in _DENIED else noted
        if row is None:
            return
        try:
            await run_in_threadpool(self._write, row)
        except CleaveError as error:
            self._forget(row)
            log.error("audit not written", row=row, error=str(error))

    def _bounded(self, row: AuditRow) -> AuditRow | None:
        """Return the row to write for a denial, and remember the denial. Return None if an equal denial was recorded
        within the minute, or if a limit of the minute is reached. The row that reaches a limit says so in its reason.
        """
        if time.monotonic() >= self._forgets_at:
            self._denials.clear()
            self._counts.clear()
            self._forgets_at = time.monotonic() + REMEMBERED_SECONDS
        key, limits = _denial_key(row), _limits(row)
        if key in self._denials or any(self._counts[sender] >= most for sender, most in limits.items()):
            return None
        self._denials.add(key)
        self._counts.update(limits.keys())
        for sender, most in limits.items():
            if self._counts[sender] == most:
                note = f"{most} denials of {_sender_name(sender)} within a minute; more are not recorded"
                return replace(row, reason=f"{row.reason or 'denied'} ({note})")
        return row

    def _forget(self, row: AuditRow) -> None:
        """Forget a denial that was not written. Does nothing for a change."""
        key = _denial_key(row)
        if key in self._denials:
            self._denials.remove(key)
            self._counts.subtract(_limits(row).keys())


def _denial_key(row: AuditRow) -> tuple[object, ...]:
    """Return the fields in which equal denials agree. Without a subject the path is not one of them, because the sender may choose any."""
    path = None if row.subject is None else row.path
    return (row.subject, network_of(row.address or ""), row.method, row.act, row.status, path)


def _limits(row: AuditRow) -> dict[Sender, int]:
    """Return the limits that count a denial, by the senders that each limit is for."""
    if row.subject is not None:
        return {(row.subject, None): MOST_OF_SENDER}
    return {(None, network_of(row.address or "")): MOST_OF_SENDER, (None, None): MOST_WITHOUT_TOKEN}


def _sender_name(sender: Sender) -> str:
    """Return the words for the sender in a reason."""
    subject, network = sender
    return f"subject {subject}" if subject is not None else network or "senders without a valid token"


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
