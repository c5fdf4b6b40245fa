"""Which requests the middleware records, and how often. The rows: `tests/integration/web/test_audit.py`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from controller.actions.rights import Right
from controller.domain.errors import StoreUnavailable
from controller.store.audit import AuditRow
from controller.web.audit import Audited


class Application:
    """Answers each request with one status, and raises the error behind the beginning of the answer, or in place of it."""

    def __init__(self, status: int, error: Exception | None = None, *, is_answering: bool = True) -> None:
        self._status, self._error, self._is_answering = status, error, is_answering

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        if self._is_answering:
            await send({"type": "http.response.start", "status": self._status, "headers": []})
        if self._error is not None:
            raise self._error


def ask(audited: Audited) -> None:
    """Request a change."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_message: Message) -> None:
        pass

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/split",
        "query_string": b"",
        "state": {"right": Right.OPERATE},
    }
    asyncio.run(audited(scope, receive, send))


@pytest.mark.parametrize(("is_answering", "status"), [(True, 200), (False, 500)])
def test_a_change_that_ends_in_an_error_is_recorded_once(is_answering: bool, status: int) -> None:
    """The sender has the status with which the answer began."""
    rows: list[AuditRow] = []
    audited = Audited(Application(200, ValueError("injected"), is_answering=is_answering), rows.append)

    with pytest.raises(ValueError, match="injected"):
        ask(audited)

    assert [row.status for row in rows] == [status]


def test_a_denial_that_could_not_be_recorded_does_not_hide_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[AuditRow] = []

    def write(row: AuditRow) -> None:
        tried.append(row)
        if len(tried) == 1:
            raise StoreUnavailable("injected")

    audited = Audited(Application(403), write)
    for _ in range(3):
        ask(audited)

    assert len(tried) == 2, "the first was not recorded, the third is a repetition"
