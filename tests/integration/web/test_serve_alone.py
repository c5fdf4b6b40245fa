"""`cleave serve` as a process: it answers people and watches, leads nothing, and carries out what nobody else would."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest

from controller.client.servers import consumer_path
from controller.devstack.process import ChildProcess
from controller.devstack.serving import client_of, serving_leader, token_for
from tests.support.asking import administrator, bearer
from tests.support.bench import Bench
from tests.support.over_http import server_process
from tests.support.waiting import wait_until

SEGMENTS = 1

TOPIC = "/api/v1/topics/acme/shop/orders"


@pytest.fixture
def serving(bench: Bench, tmp_path: Path) -> Iterator[tuple[ChildProcess, httpx.Client]]:
    """The process, and an administrator's client of it."""
    with (
        server_process(bench.url, tmp_path) as (process, address),
        administrator(address) as http,
    ):
        yield process, http


def test_without_a_worker_it_carries_out_what_is_asked_itself(
    bench: Bench, serving: tuple[ChildProcess, httpx.Client]
) -> None:
    _, http = serving
    assert http.post("/admin/v2/scalable/acme/shop/orders/split/0").status_code == 204
    assert [one["segment_id"] for one in http.get(f"{TOPIC}/layout").json()["segments"]] == [1, 2]
    assert bench.scalar("SELECT count(*) FROM cleave.lease") == 0


def test_sessions_are_sent_to_the_worker_that_leads(
    bench: Bench, serving: tuple[ChildProcess, httpx.Client]
) -> None:
    _, http = serving
    consumer = f"{TOPIC}/subscriptions/billing/consumers/a"
    client = bearer(token_for())
    nobody = http.post(consumer, json={"incarnation": "1"}, headers=client)
    assert (nobody.status_code, "no worker leads" in nobody.json()["reason"]) == (503, True)
    with serving_leader(bench.url) as leader:
        there = http.post(consumer, json={"incarnation": "1"}, headers=client)
        assert (there.status_code, there.headers["Location"]) == (307, f"{leader}{consumer}")


@pytest.mark.parametrize("sent", ["cv%253Atest", "cv%3Atest", "a|%22b"])
def test_a_request_is_sent_on_with_its_address_as_it_came(
    bench: Bench, serving: tuple[ChildProcess, httpx.Client], sent: str
) -> None:
    name = bench.topic_name = f"topic://acme/shop/{unquote(sent)}"
    topic_id = bench.topic_with()
    address = httpx.URL(serving[1].base_url)
    consumer = f"/api/v1/topics/acme/shop/{sent}/subscriptions/billing/consumers/a"
    with serving_leader(bench.url) as leader:
        with socket.create_connection((address.host, address.port or 80), timeout=30) as raw:
            raw.sendall(
                f"GET {consumer}/assignment?incarnation=1|2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                f"Authorization: Bearer {token_for()}\r\n\r\n".encode()
            )
            answer = raw.makefile("rb").read().decode()
        there = client_of(str(address), topics=(name,))
        begun = there.ask("POST", consumer_path(name, "billing", "a"), document={"incarnation": "1"})
        there.close()

    assert f"location: {leader}{consumer}/assignment?incarnation=1|2\r\n" in answer
    assert begun["topic_id"] == topic_id


def test_it_leaves_when_it_is_told_to(serving: tuple[ChildProcess, httpx.Client]) -> None:
    process, http = serving
    with http.stream("GET", f"{TOPIC}/layout/watch") as stream:
        assert stream.status_code == 200
        os.kill(process.pid, signal.SIGTERM)
        wait_until(lambda: not process.running, message="it has left")
    assert process.exit_code == 0
