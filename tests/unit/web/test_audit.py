"""Which requests the middleware records, and how often. The rows: `tests/integration/web/test_audit.py`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from controller.actions.rights import Right
from controller.domain.errors import StoreUnavailable
from controller.store.audit import AuditRow
from controller.web.access import Grant, Role
from controller.web.audit import MOST_OF_SENDER, MOST_WITHOUT_TOKEN, Audited


class Application:
    """Answers each request with one status, and raises the error behind the beginning of the answer, or in place of it."""

    def __init__(self, status: int, error: Exception | None = None, *, is_answering: bool = True) -> None:
        self._status, self._error, self._is_answering = status, error, is_answering

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        if self._is_answering:
            await send({"type": "http.response.start", "status": self._status, "headers": []})
        if self._error is not None:
            raise self._error


def ask(
    audited: Audited,
    path: str = "/split",
    *,
    method: str = "POST",
    address: str = "192.0.2.1",
    subject: str | None = None,
) -> None:
    """Request a change, with the token of a subject or without one."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_message: Message) -> None:
        pass

    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "client": (address, 1),
        "state": {"right": Right.OPERATE},
    }
    if subject is not None:
        scope["state"]["grant"] = Grant(Role.READER, subject=subject)
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


def test_a_denial_that_could_not_be_recorded_counts_for_no_limit() -> None:
    tried: list[AuditRow] = []

    def write(row: AuditRow) -> None:
        tried.append(row)
        if len(tried) <= MOST_OF_SENDER:
            raise StoreUnavailable("injected")

    audited = Audited(Application(403), write)
    for index in range(MOST_OF_SENDER + 1):
        ask(audited, f"/topics/{index}", subject="ada")

    assert len(tried) == MOST_OF_SENDER + 1


def test_the_denials_of_a_subject_are_bounded_and_the_last_says_so() -> None:
    rows: list[AuditRow] = []
    audited = Audited(Application(403), rows.append)
    for index in range(MOST_OF_SENDER + 50):
        ask(audited, f"/topics/{index}", subject="ada", address=f"192.0.2.{index}")
    ask(audited, subject="bob")

    assert [row.path for row in rows] == [*(f"/topics/{index}" for index in range(MOST_OF_SENDER)), "/split"]
    assert [row.reason for row in rows[-3:]] == [
        None,
        "denied (100 denials of subject ada within a minute; more are not recorded)",
        None,
    ]


def test_the_addresses_of_a_network_are_one_sender_without_a_token() -> None:
    """A sender has all addresses of its /64, and may invent paths."""
    rows: list[AuditRow] = []
    audited = Audited(Application(401), rows.append)
    for index in range(50):
        ask(audited, f"/{index}", address=f"2001:db8::{index:x}")
    ask(audited, address="2001:db8:1::1")

    assert [row.address for row in rows] == ["2001:db8::0", "2001:db8:1::1"]


def test_the_denials_of_a_network_are_bounded_without_a_token() -> None:
    rows: list[AuditRow] = []
    audited = Audited(Application(401), rows.append)
    for index in range(MOST_OF_SENDER + 10):
        ask(audited, method=f"M{index}", address=f"2001:db8::{index:x}")

    assert len(rows) == MOST_OF_SENDER
    assert rows[-1].reason == "denied (100 denials of 2001:db8::/64 within a minute; more are not recorded)"


def test_the_denials_of_all_senders_without_a_token_are_bounded() -> None:
    rows: list[AuditRow] = []
    audited = Audited(Application(401), rows.append)
    for index in range(MOST_WITHOUT_TOKEN + 10):
        ask(audited, address=f"2001:db8:0:{index:x}::1")
    ask(audited, subject="ada")

    assert len(rows) == MOST_WITHOUT_TOKEN + 1
    assert [row.reason for row in rows[-3:]] == [
        None,
        "denied (1000 denials of senders without a valid token within a minute; more are not recorded)",
        None,
    ]


def test_equal_denials_are_recorded_again_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the sender counts from zero then."""
    monkeypatch.setattr("controller.web.audit.MOST_OF_SENDER", 1)
    rows: list[AuditRow] = []
    audited = Audited(Application(403), rows.append)
    for now in (1000.0, 1059.0, 1060.0):
        monkeypatch.setattr("controller.web.audit.time.monotonic", lambda now=now: now)
        ask(audited, subject="ada")

    assert len(rows) == 2
