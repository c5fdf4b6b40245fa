"""A server that commands are to ask: its address and the token, wrong in each way, and who may be there instead of Cleave."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.actions.responses import OperationResponse
from controller.commands.cli import run
from controller.domain.errors import Terminal
from tests.support.log_settings import logging_kept
from tests.support.other_servers import server_that_answers

Refused = Callable[..., tuple[int, str]]


@pytest.fixture
def refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    """`cleave topics list` with these settings: its exit code and its one line."""
    monkeypatch.chdir(tmp_path)
    for name in ("CLEAVE_API_URL", "CLEAVE_API_TOKEN", "CLEAVE_API_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)

    def say(url: str = "http://127.0.0.1:1", **settings: str) -> tuple[int, str]:
        for name, value in settings.items():
            monkeypatch.setenv(f"CLEAVE_{name.upper()}", value)
        with logging_kept():
            code = run(["--api-url", url, "topics", "list"])
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1), said
        return code, said.err.removeprefix("cleave: ").rstrip()

    return say


@pytest.mark.parametrize("url", ["cleave", "ftp://cleave:1", "http://", "http://[", "https://cleave:0"])
def test_what_is_no_address_is_refused(refused: Refused, url: str) -> None:
    code, said = refused(url, api_token="t")

    assert (code, said) == (
        2,
        "--api-url is not the address of a server; write http://host:port or https://host:port",
    )


def test_an_address_with_a_password_is_refused_without_saying_it(refused: Refused) -> None:
    code, said = refused("http://ada:hunter2@cleave:8470", api_token="t")

    assert code == 2
    assert "--api-url contains a user or a query" in said
    assert "hunter2" not in said


def test_without_a_token_nobody_is_asked(refused: Refused) -> None:
    code, said = refused()

    assert code == 2
    assert (
        said
        == "no token for http://127.0.0.1:1; set CLEAVE_API_TOKEN or CLEAVE_API_TOKEN_FILE to one of `cleave token`"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file or directory; write a token of `cleave token` into the file"),
        (b"\xff\xfe", "cannot be read: it is no text; write a token of `cleave token` into the file"),
        (b"two words", "contains spaces or characters that a token cannot have; give a token on one line"),
        (b"\n", "no token for http://127.0.0.1:1"),
    ],
    ids=["away", "binary", "words", "empty"],
)
def test_a_file_without_a_token_is_named(
    refused: Refused, tmp_path: Path, text: bytes | None, said: str
) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_bytes(text)
    code, line = refused(api_token_file=str(file), api_token="another")

    assert code == 2
    assert said in line
    assert said.startswith("no token") or f"CLEAVE_API_TOKEN_FILE ({file})" in line


def test_a_token_that_none_can_be_is_not_said(refused: Refused) -> None:
    code, said = refused(api_token="secret ü word")

    assert (code, "CLEAVE_API_TOKEN contains spaces" in said) == (2, True)
    assert "secret" not in said


def test_a_server_that_is_away_is_for_later(refused: Refused) -> None:
    code, said = refused(api_token="t")

    assert code == 75
    assert said.startswith("no worker answers at http://127.0.0.1:1: ConnectError:")
    assert said.endswith(
        "; check that `cleave serve` or a worker is running at http://127.0.0.1:1, or correct CLEAVE_API_URL or --api-url"
    )


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>welcome</html>", "is no worker of Cleave: "),
        (200, b'{"a": 1}', "the server's answer has no 'items'"),
        (200, b"[]", "the server's answer has no 'items'"),
        (302, b"", "answered 302, and is no worker of Cleave"),
        (404, b"<html>none</html>", "answered 404, and is no worker of Cleave"),
        (404, b'{"reason": "no"}', "answered 404 (no), and is no worker of Cleave"),
    ],
)
def test_somebody_else_at_the_address_is_told_from_cleave(
    refused: Refused, status: int, body: bytes, said: str
) -> None:
    with server_that_answers(status, body) as url:
        code, line = refused(url, api_token="t")

    assert (code, said in line) == (1, True), line


@pytest.mark.parametrize(
    ("headers", "said"), [({"Retry_After": "7"}, "; retry in 7 s"), ({}, "")], ids=["when", "some-time"]
)
def test_a_gateway_that_is_too_busy_is_for_later(
    refused: Refused, headers: dict[str, str], said: str
) -> None:
    with server_that_answers(503, b"<html>busy</html>", **headers) as url:
        code, line = refused(url, api_token="t")

    assert (code, line) == (75, f"{url} answered 503{said}")


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (503, "StoreUnavailable", 75),
        (503, "DataPlaneTimeout", 75),
        (409, "LostRace", 75),
        (409, "SegmentBusy", 2),
        (412, "InvalidPolicy", 2),
        (422, "Unsupported", 2),
        (403, "AccessForbidden", 1),
        (500, "InvariantViolated", 1),
    ],
)
def test_what_the_server_says_is_the_line_and_its_kind_the_exit_code(
    refused: Refused, status: int, kind: str, code: int
) -> None:
    body = json.dumps({"reason": "that is why", "kind": kind}).encode()
    with server_that_answers(status, body, Retry_After="1") as url:
        assert refused(url, api_token="t") == (code, "that is why")


def test_an_operation_that_was_aborted_is_a_failure_with_where_it_says_why() -> None:
    response = OperationResponse(
        operation_id=7,
        kind="split",
        topic="topic://acme/shop/orders",
        state="aborted",
        epoch=None,
        parents=[0],
        children=[],
        creates=[],
        origin="manual",
        actor="ada",
        reason="more room",
        last_error="its topic is being deleted",
        parameters={},
    )

    with pytest.raises(Terminal) as told:
        response.demand_done(60.0)
    assert str(told.value) == (
        "operation 7 (split of topic://acme/shop/orders) was aborted: its topic is being deleted"
    )
