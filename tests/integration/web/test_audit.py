"""What is written down of who asked: each change with its result, each denial once a minute, and nothing of what clients say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from controller.devstack.serving import serving_leader, token_for, token_of
from controller.web.access import Role
from tests.support.asking import bearer
from tests.support.bench import Bench

SEGMENTS = 1

LAYOUT = "/api/v1/topics/acme/shop/orders/layout"


@pytest.fixture
def http(bench: Bench) -> Iterator[httpx.Client]:
    with serving_leader(bench.url) as address, httpx.Client(base_url=address, timeout=30.0) as http:
        yield http


def audited(bench: Bench) -> list[dict[str, Any]]:
    with bench.store.transaction() as tx:
        rows = tx.execute(text("SELECT * FROM inspect.audit ORDER BY audit_id")).mappings()
        return [dict(row) for row in rows]


def test_a_denial_is_written_down_once_a_minute_for_each_who_and_what(
    bench: Bench, http: httpx.Client
) -> None:
    other = bearer(token_for("topic://acme/shop/returns"))
    for _ in range(3):
        assert http.get(LAYOUT).status_code == 401
        assert http.get(LAYOUT, headers=other).status_code == 403

    rows = audited(bench)
    assert [(row["subject"], row["role"], row["status"], row["result"]) for row in rows] == [
        (None, None, 401, "denied"),
        ("client", "client", 403, "denied"),
    ]
    assert {(row["method"], row["path"], row["act"], row["address"]) for row in rows} == {
        ("GET", LAYOUT, "layout", "127.0.0.1")
    }
    assert "does not include topic://acme/shop/orders" in rows[1]["reason"]


def test_a_denial_on_each_topic_is_written_down(bench: Bench, http: httpx.Client) -> None:
    """Otherwise the audit would not say which topics a token was tried on."""
    reader = bearer(token_of(Role.READER))
    splits = [f"/api/v1/topics/acme/shop/{topic}/split" for topic in ("orders", "returns", "orders")]
    for split in splits:
        assert http.post(split, json={"segment_id": 0}, headers=reader).status_code == 403

    assert [(row["subject"], row["path"]) for row in audited(bench)] == [
        ("reader", split) for split in splits[:2]
    ]


def test_what_clients_say_and_people_read_is_not_written_down(bench: Bench, http: httpx.Client) -> None:
    consumer = "/api/v1/topics/acme/shop/orders/subscriptions/billing/consumers/a"
    client = bearer(token_for())
    assert http.post(consumer, json={"incarnation": "1"}, headers=client).status_code == 200
    assert http.post(f"{consumer}/pulse", json={}, headers=client).status_code == 412
    assert http.get(LAYOUT, headers=bearer(token_of(Role.READER))).status_code == 200

    assert audited(bench) == []


def test_no_row_is_ever_changed(bench: Bench, http: httpx.Client) -> None:
    http.get(LAYOUT)

    with pytest.raises(Exception, match="history"):
        bench.execute("UPDATE cleave.audit SET subject = 'somebody else'")


def test_a_dry_run_is_written_down_as_such_done_or_denied(bench: Bench, http: httpx.Client) -> None:
    split = "/api/v1/topics/acme/shop/orders/split"
    operator = bearer(token_of(Role.OPERATOR, "acme/shop"))
    reader = bearer(token_of(Role.READER))
    assert http.post(f"{split}?dry_run=true", json={"segment_id": 0}, headers=operator).status_code == 200
    assert http.post(f"{split}?dry_run=true", json={"segment_id": 0}, headers=reader).status_code == 403
    assert http.post(f"{split}?dry_run=false", json={"segment_id": 0}, headers=operator).status_code == 200

    rows = audited(bench)
    assert [(row["result"], row["dry_run"]) for row in rows] == [
        ("done", True),
        ("denied", True),
        ("done", False),
    ]


def test_what_a_query_holds_is_not_written_down(bench: Bench, http: httpx.Client) -> None:
    http.get(f"{LAYOUT}?access_token=secret")

    assert [row["path"] for row in audited(bench)] == [LAYOUT]
