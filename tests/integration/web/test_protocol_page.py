"""The page of the clients' protocol: each exchange that it shows is made with a real worker, and answered as it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx_sse
import pytest

from controller.devstack.serving import serving_leader, token_for
from tests.support.bench import Bench

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "client-protocol.md"
ANYTHING = "‹anything›"


def blocks() -> list[str]:
    """What the page shows, in its order."""
    return re.findall(r"^```http\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def document(shown: str) -> Any:
    """JSON in which `‹…›` stands for anything."""
    return json.loads(re.sub(r'"‹[^›]*›"|‹[^›]*›', f'"{ANYTHING}"', shown)) if shown.strip() else None


def fits(shown: Any, said: Any) -> bool:
    """Whether what was said is what is shown."""
    if shown == ANYTHING:
        return said is not None
    if isinstance(shown, dict) and isinstance(said, dict):
        return shown.keys() == said.keys() and all(fits(shown[name], said[name]) for name in shown)
    if isinstance(shown, list) and isinstance(said, list):
        return len(shown) == len(said) and all(map(fits, shown, said))
    return bool(shown == said)


@pytest.fixture
def http(database: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a leader with the settings that the page is of."""
    bench = Bench(database)
    bench.topic_with(segments=1)
    landing = str(tmp_path / "landing")
    with serving_leader(bench.url, consumer_grace_seconds=60.0, landing_url=landing) as address:
        headers = {"Authorization": f"Bearer {token_for()}"}
        with httpx.Client(base_url=address, headers=headers, timeout=30.0) as http:
            yield http
    bench.close()


def test_each_exchange_of_the_page_is_what_is_said(http: httpx.Client) -> None:
    shown = blocks()
    assert len(shown) == 45
    asked, answer = "", httpx.Response(500)
    for block in shown:
        head, _, body = block.partition("\n")
        if head.startswith("EVENT "):
            with httpx_sse.connect_sse(
                http, "GET", f"{asked}/assignment", params={"incarnation": "f00d"}
            ) as stream:
                event = next(stream.iter_sse())
            assert event.event == head.removeprefix("EVENT ")
            assert fits(document(body), json.loads(event.data)), event.data
        elif head.isdigit():
            assert answer.status_code == int(head), answer.text
            assert fits(document(body), answer.json() if answer.content else None), answer.text
        else:
            method, path = head.split()
            asked = path
            answer = http.request(method, path, json=document(body))
