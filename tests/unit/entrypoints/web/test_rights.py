"""No route is open to everybody: an app with one that declares no right, or two, is not made at all."""

from __future__ import annotations

import pytest
from fastapi import APIRouter
from fastapi.params import Depends

from controller.domain.errors import InvariantViolated
from controller.entrypoints.web import app
from controller.entrypoints.web.demands import OPERATE, READ


@pytest.mark.parametrize(
    ("rights", "said"), [([], "declares 0 rights"), ([READ, OPERATE], "declares 2 rights")]
)
def test_a_route_declares_exactly_one_right(
    monkeypatch: pytest.MonkeyPatch, rights: list[Depends], said: str
) -> None:
    router = APIRouter()

    @router.get("/open", dependencies=rights)
    def answer() -> str:
        return "to everybody"

    monkeypatch.setattr(app, "ROUTERS", (*app.ROUTERS, router))

    with pytest.raises(InvariantViolated, match=f"route /open {said}"):
        app.routed_app()
