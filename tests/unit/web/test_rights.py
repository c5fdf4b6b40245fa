"""An app is not made with a route that declares no right, or two, or reads bodies before it demands one, or with two routes of one call."""

from __future__ import annotations

import pytest
from fastapi import APIRouter
from fastapi.params import Depends

from controller.domain.errors import InvariantViolated
from controller.web import app
from controller.web.route_rights import OPERATE, READ, DemandingRoute


def add_route(
    monkeypatch: pytest.MonkeyPatch, path: str, rights: list[Depends], *, is_demanding: bool
) -> None:
    """Add `GET path` to the routes of the app."""
    router = APIRouter(**{"route_class": DemandingRoute} if is_demanding else {})

    @router.get(path, dependencies=rights)
    def answer() -> str:
        return "an answer"

    monkeypatch.setattr(app, "ROUTERS", (*app.ROUTERS, router))


TWO_ROUTES = r"2 routes answer GET /api/v1/operations/{}; give each call"
REFUSED = {
    "no right": ("/open", [], True, "route /open declares 0 rights"),
    "two rights": ("/open", [READ, OPERATE], True, "route /open declares 2 rights"),
    "a body before the right": (
        "/early",
        [READ],
        False,
        "route /early reads bodies before it demands its right",
    ),
    "a second route": ("/api/v1/operations/{operation_id}", [READ], True, TWO_ROUTES),
    "a second route with another parameter": ("/api/v1/operations/{number}", [READ], True, TWO_ROUTES),
}


@pytest.mark.parametrize(("path", "rights", "is_demanding", "words"), REFUSED.values(), ids=REFUSED)
def test_an_app_is_not_made_with_such_a_route(
    monkeypatch: pytest.MonkeyPatch, path: str, rights: list[Depends], is_demanding: bool, words: str
) -> None:
    add_route(monkeypatch, path, rights, is_demanding=is_demanding)

    with pytest.raises(InvariantViolated, match=words):
        app.routed_app()
