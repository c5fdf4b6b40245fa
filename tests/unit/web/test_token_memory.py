"""Valid tokens are verified once; a token that may have expired, and a refused one, at each request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import jwt
import pytest
from starlette.requests import Request

from controller.devstack.serving import SECRET, token_for
from controller.domain.errors import AccessDenied, TokenOutOfTime
from controller.web import access
from controller.web.access import Grant
from controller.web.route_rights import Who, token_holder


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The headers whose signature was verified."""
    headers, read = list[str | None](), access.read

    def read_and_record(secret: str, header: str | None) -> Grant:
        headers.append(header)
        return read(secret, header)

    monkeypatch.setattr(access, "read", read_and_record)
    return headers


@pytest.fixture
def ask(verified: list[str | None]) -> Callable[[str], Grant]:
    """Return the grant of a request with the token."""
    del verified
    identify: Who = token_holder(SECRET)

    async def grant(token: str) -> Grant:
        headers = [(b"authorization", f"Bearer {token}".encode())]
        return await identify(Request({"type": "http", "headers": headers}))

    return lambda token: asyncio.run(grant(token))


def test_a_valid_token_is_verified_once(ask: Callable[[str], Grant], verified: list[str | None]) -> None:
    one, other = token_for("topic://a/b/c"), token_for("topic://a/b/d")
    assert [ask(token).topics for token in (one, other, one, other)] == [
        ("topic://a/b/c",),
        ("topic://a/b/d",),
    ] * 2
    assert len(verified) == 2


def test_a_token_that_expires_is_refused_though_it_is_remembered(
    ask: Callable[[str], Grant], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = token_for(life_seconds=100.0)
    ends_at = ask(token).ends_at

    monkeypatch.setattr("controller.web.route_rights.time.time", lambda: ends_at)
    assert ask(token).ends_at == ends_at, "the library decides, by its own clock"
    monkeypatch.setattr("jwt.api_jwt.PyJWT._validate_exp", _expired)
    with pytest.raises(TokenOutOfTime):
        ask(token)


def _expired(*_: object) -> None:
    raise jwt.ExpiredSignatureError


def test_a_refused_token_is_verified_each_time(
    ask: Callable[[str], Grant], verified: list[str | None]
) -> None:
    for _ in range(2):
        with pytest.raises(AccessDenied):
            ask(f"{token_for()}x")
    assert len(verified) == 2
