"""An app is not made with a route that declares no right, or two, or reads bodies before it demands one, or with two routes of one call."""

from __future__ import annotations

import pytest
from fastapi import APIRouter
from fastapi.params import Depends

from controller.domain.errors import InvariantViolated
from controller.web import app
from controller.web.route_rights import OPERATE, READ, DemandingRoute


def add_route(
    monkeypatch: pytest.MonkeyPatch, path: str, rights: list[Depends], *, is_demanding: bool = True
) -> None:
    """Add `GET path` to the routes of the app."""
    router = APIRouter(**{"route_class": DemandingRoute} if is_demanding else {})

    @router.get(path, dependencies=rights)
    def answer() -> str:
        return "an answer"

    monkeypatch.setattr(app, "ROUTERS", (*app.ROUTERS, router))


@pytest.mark.parametrize(
    ("rights", "words"), [([], "declares 0 rights"), ([READ, OPERATE], "declares 2 rights")]
)
def test_a_route_declares_exactly_one_right(
    monkeypatch: pytest.MonkeyPatch, rights: list[Depends], words: str
) -> None:
    add_route(monkeypatch, "/open", rights)

    with pytest.raises(InvariantViolated, match=f"route /open {words}"):
        app.routed_app()


def test_a_route_demands_its_right_before_it_reads_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    add_route(monkeypatch, "/early", [READ], is_demanding=False)

    with pytest.raises(InvariantViolated, match="route /early reads bodies before it demands its right"):
        app.routed_app()


@pytest.mark.parametrize("path", ["/api/v1/operations/{operation_id}", "/api/v1/operations/{number}"])
def test_two_routes_of_one_call_are_refused_whatever_their_parameters_are_named(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    add_route(monkeypatch, path, [READ])

    with pytest.raises(InvariantViolated, match=r"2 routes answer GET /api/v1/operations/{}; give each call"):
        app.routed_app()
