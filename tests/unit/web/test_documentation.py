"""The page `/docs` where another server has the app mounted, as Airflow has below `/cleave-rest`: every address on the page is below it."""

from __future__ import annotations

import re
from typing import cast

from fastapi import FastAPI

from controller.pages.context import PageContext
from controller.pages.mounted_services import ContextServices
from controller.web.app import app_for_people
from controller.web.route_rights import Who
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
