"""Recovery of a topic over HTTP, and what other calls answer while the topic is held."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from controller.devstack.serving import serving_leader
from tests.support.asking import administrator
from tests.support.bench import Bench
from tests.support.older_journal import lost_child

TOPIC = "/api/v1/topics/acme/shop/orders"


@pytest.fixture
def held_by(bench: Bench) -> str:
    """The log for which the topic is held as soon as the topic is recovered."""
    bench.topic_with()
    return lost_child(bench)


@pytest.fixture
def http(bench: Bench) -> Iterator[httpx.Client]:
    """An administrator's client of a leader that runs no maintenance."""
    with serving_leader(bench.url) as address, administrator(address) as http:
        yield http


def test_a_held_topic_says_why_and_is_released_after_the_log_is_gone(
    bench: Bench, held_by: str, http: httpx.Client
) -> None:
    answer = http.post(f"{TOPIC}/recover", headers={"Idempotency-Key": "first"})

    assert answer.status_code == 200, answer.text
    held = answer.json()
    assert held_by in held["held_reason"]
    assert [(one["kind"], one["error"] is not None) for one in held["findings"]] == [("logs-ahead", True)]
    assert bench.rows("SELECT subject, act, status FROM inspect.audit") == [("ada", "topics_recover", 200)]

    bench.plane.delete_segment(held_by)
    assert http.post(f"{TOPIC}/recover", headers={"Idempotency-Key": "first"}).json() == held
    released = http.post(f"{TOPIC}/recover").json()
    assert (released["held_reason"], released["findings"], released["epoch"]) == (None, [], 0)


@pytest.mark.usefixtures("held_by")
def test_what_begins_on_a_held_topic_is_refused_for_now(http: httpx.Client) -> None:
    http.post(f"{TOPIC}/recover").raise_for_status()

    for method, path in (
        ("POST", f"{TOPIC}/split"),
        ("DELETE", TOPIC),
        ("POST", "/admin/v2/scalable/acme/shop/orders/split/0"),
        ("DELETE", "/admin/v2/scalable/acme/shop/orders"),
    ):
        document = {"segment_id": 0} if path == f"{TOPIC}/split" else None
        answer = http.request(method, path, json=document)
        assert answer.status_code == 503, (path, answer.text)
        assert answer.headers["Retry-After"] == "1"
        assert answer.json()["kind"] == "TopicHeld"
        assert "see `cleave topics recover topic://acme/shop/orders --dry-run`" in answer.json()["reason"]
    for path in (f"{TOPIC}/layout", f"{TOPIC}/overview", "/admin/v2/scalable/acme/shop/orders"):
        assert http.get(path).status_code == 200


def test_a_topic_that_neither_database_nor_logs_have_is_not_found(http: httpx.Client) -> None:
    for body in (None, {"data_plane": "embedded"}):
        answer = http.post("/api/v1/topics/acme/shop/none/recover", json=body)
        assert (answer.status_code, answer.json()["kind"]) == (404, "TopicNotFound")
    elsewhere = http.post("/api/v1/topics/acme/shop/none/recover", json={"data_plane": "nowhere"})
    assert (elsewhere.status_code, elsewhere.json()["kind"]) == (422, "Unsupported")
