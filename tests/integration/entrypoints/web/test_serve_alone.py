"""`cleave serve` as a process: it answers people and watches, leads nothing, and carries out what nobody else would."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from controller.devstack.ports import free_port, release_port
from controller.devstack.process import ChildProcess
from controller.devstack.serving import SECRET, serving_leader, token_for
from tests.support.asking import administrator, bearer
from tests.support.bench import Bench
from tests.support.cleave_process import cleave_process
from tests.support.waiting import wait_until

TOPIC = "/api/v1/topics/acme/shop/orders"


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """A topic."""
    bench.topic_with(segments=1)
    return bench


@pytest.fixture
def serving(bench: Bench, tmp_path: Path) -> Iterator[tuple[ChildProcess, httpx.Client]]:
    """The process, and an administrator's client of it."""
    port = free_port()
    log = tmp_path / "serve.log"
    process = cleave_process("serve", log=log, database_url=bench.url, api_secret=SECRET, serve_port=port)
    process.start()
    try:
        wait_until(lambda: "serving" in log.read_text(), message="it serves")
        with administrator(f"http://127.0.0.1:{port}") as http:
            yield process, http
    finally:
        process.stop()
        release_port(port)


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
    assert (nobody.status_code, "nobody leads" in nobody.json()["reason"]) == (503, True)
    with serving_leader(bench.url) as leader:
        there = http.post(consumer, json={"incarnation": "1"}, headers=client)
        assert (there.status_code, there.headers["Location"]) == (307, f"{leader}{consumer}")


def test_it_leaves_when_it_is_told_to(serving: tuple[ChildProcess, httpx.Client]) -> None:
    process, http = serving
    with http.stream("GET", f"{TOPIC}/layout/watch") as stream:
        assert stream.status_code == 200
        os.kill(process.pid, signal.SIGTERM)
        wait_until(lambda: not process.running, message="it has left")
    assert process.exit_code == 0
