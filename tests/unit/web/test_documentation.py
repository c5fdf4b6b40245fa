"""The page `/docs` where another server has the app mounted, as Airflow has below `/cleave-rest`: every address on the page is below it."""

from __future__ import annotations

import asyncio
import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from controller.domain.errors import InvariantViolated
from controller.pages.context import PageContext
from controller.pages.mounted_services import ContextServices
from controller.web import description
from controller.web.app import app_for_people
from controller.web.route_rights import Who
from controller.web.shared_parameters import PeopleServices
from tests.support.app_client import AppClient

PREFIX = "/cleave-rest"
AWAY = "postgresql://somebody@127.0.0.1:1/cleave"


def test_below_a_prefix_the_page_finds_its_files_and_the_document_its_server() -> None:
    server = FastAPI()
    services = ContextServices(PageContext(lambda: {"dsn": AWAY, "extras": {}}))
    server.mount(PREFIX, app_for_people(services, cast(Who, None), most_at_once=1))
    client = AppClient(server)

    page = client.get(f"{PREFIX}/docs").text
    addresses = re.findall(r"""(?:href|src)="([^"]+)"|url: '([^']+)'""", page)
    answers = {address: client.get(address) for address in map("".join, addresses)}

    assert {address: answer.status_code for address, answer in answers.items()} == {
        f"{PREFIX}/docs/files/swagger-ui.css": 200,
        f"{PREFIX}/docs/files/favicon.png": 200,
        f"{PREFIX}/docs/files/swagger-ui-bundle.js": 200,
        f"{PREFIX}/openapi.json": 200,
    }
    assert answers[f"{PREFIX}/openapi.json"].json()["servers"] == [{"url": PREFIX}]


def test_concurrent_requests_share_a_build_and_a_failed_one_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builds: list[object] = []

    def fail_first(tx: object) -> dict[str, Any]:
        builds.append(tx)
        if len(builds) == 1:
            raise InvariantViolated("the first build fails")
        return {}

    store = SimpleNamespace(transaction=nullcontext)
    services = cast(PeopleServices, SimpleNamespace(api=SimpleNamespace(store=store)))
    app = app_for_people(services, cast(Who, None), most_at_once=2)
    monkeypatch.setattr(description, "row_schemas", fail_first)

    failed = asyncio.run(ask_twice(app))
    built = asyncio.run(ask_twice(app))

    assert [answer.status_code for answer in failed + built] == [500, 500, 200, 200]
    assert len(builds) == 2
    calls = [call for path in built[0].json()["paths"].values() for call in path.values()]
    assert {call["description"].count("Required right") for call in calls} == {1}


async def ask_twice(app: FastAPI) -> list[httpx.Response]:
    """Ask for the document in two requests at once."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        return list(await asyncio.gather(client.get("/openapi.json"), client.get("/openapi.json")))
