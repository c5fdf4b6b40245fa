"""The page `/docs` of a worker, in a real browser without a token: it lists calls and fetches nothing from elsewhere."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from controller.devstack.serving import serving_leader
from tests.support.bench import Bench
from tests.support.browser import tab, window

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_the_page_lists_calls_with_their_rights_and_loads_only_from_the_worker(bench: Bench) -> None:
    hosts: set[str] = set()
    with serving_leader(bench.url) as address, window(60.0) as context, tab(context) as page:
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.goto(f"{address}/docs")
        split = page.locator(".opblock", has_text="/api/v1/topics/{tenant}/{namespace}/{topic}/split").first
        split.locator(".opblock-summary-control").click()

        expect(split.get_by_text("Required right: operate")).to_be_visible()

    assert hosts - {""} == {urlsplit(address).netloc}
