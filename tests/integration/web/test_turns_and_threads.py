"""Shares of a worker's turns and threads: no caller and no broker that does not answer holds the requests of others."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.devstack.serving import serving_leader, token_for, token_of
from controller.services import subscription_lag
from controller.services.watches.layout_feed import LayoutFeed
from controller.web import http_caller
from controller.web.access import Role
from controller.web.app import DATA_PLANE_THREADS
from controller.web.http_caller import AT_ONCE, OF_SUBJECT
from tests.support.asking import administrator, bearer
from tests.support.bench import Bench
from tests.support.waiting import wait_until

SEGMENTS = 2
API = "/api/v1"
TOPIC = f"{API}/topics/acme/shop/orders"
NAME = "topic://acme/shop/orders"
ALL_SPLITS = "SELECT count(*) FROM cleave.operation WHERE kind = 'split'"
ALL_THREADS = 40
"""Threads for all other work of routes, such as reading layouts."""


@contextmanager
def acting_by(bench: Bench, address: str, subjects: Sequence[str]) -> Iterator[list[Future[httpx.Response]]]:
    """Each of the subjects splits a topic of its own, and waits for the operation."""
    names = [f"topic://acme/shop/t{number}" for number in range(len(subjects))]
    for bench.topic_name in names:
        bench.create()

    def split(name: str, subject: str) -> httpx.Response:
        return httpx.post(
            f"{address}{API}/{name.replace('topic://', 'topics/')}/split",
            json={"segment_id": 0},
            params={"wait_seconds": 6},
            headers=bearer(token_of(Role.ADMIN, subject=subject)),
            timeout=60.0,
        )

    with ThreadPoolExecutor(len(names)) as threads:
        yield [threads.submit(split, name, subject) for name, subject in zip(names, subjects, strict=True)]


def test_who_only_looks_does_not_wait_for_those_who_wait_for_operations(bench: Bench) -> None:
    """This worker carries out nothing, so each of those acts waits for as long as it may."""
    subjects = [f"admin-{number}" for number in range(AT_ONCE // OF_SUBJECT)]
    askers = [subject for subject in subjects for _ in range(OF_SUBJECT)] + ["one-more"]
    with serving_leader(bench.url) as address, acting_by(bench, address, askers) as waiting:
        wait_until(lambda: bench.scalar(ALL_SPLITS) == AT_ONCE, message="all turns are taken")
        with administrator(address) as http:
            found = http.get(f"{API}/operations", params={"live": True}).json()["items"]
            samples = http.post(
                f"{API}/load/samples",
                json={"samples": []},
                headers=bearer(token_of(Role.BROKER)),
            )
        assert len(found) == AT_ONCE  # one more waits for its turn
        assert samples.json() == {"landed": 0, "unknown": []}
        assert not any(one.done() for one in waiting)
        assert {one.result().json()["state"] for one in waiting} == {"intended"}


def test_a_subject_that_waits_for_operations_leaves_turns_for_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_caller, "AT_ONCE", 2)
    monkeypatch.setattr(http_caller, "OF_SUBJECT", 1)
    with serving_leader(bench.url) as address, acting_by(bench, address, ["greedy"] * 2) as waiting:
        wait_until(lambda: bench.scalar(ALL_SPLITS) >= 1, message="its turn is taken")
        with administrator(address) as http:
            changed = http.post(
                f"{API}/policies/namespaces/acme/shop", json={"parameters": {"max_segments": 9}}
            )
        assert changed.status_code == 200
        assert bench.scalar(ALL_SPLITS) == 1
        assert not any(one.done() for one in waiting)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "dead-letter-log"), ("GET", "why"), ("POST", "consumers/a/dead-letters")],
)
def test_a_data_plane_that_does_not_answer_leaves_threads_for_layouts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    called: list[object] = []
    answers = threading.Event()

    def hang(*arguments: object) -> dict[int, int]:
        called.append(arguments)
        answers.wait()
        return {0: 1}

    monkeypatch.setattr(EmbeddedDataPlane, "segment_state", hang)
    monkeypatch.setattr(EmbeddedDataPlane, "create_segment", hang)
    monkeypatch.setattr(LayoutFeed, "why", lambda *_: [{"waits_for": [0]}])
    monkeypatch.setattr(subscription_lag, "unread", hang)
    body = {"json": {"incarnation": "1"}} if method == "POST" else {}
    with (
        serving_leader(bench.url) as address,
        httpx.Client(base_url=address, headers=bearer(token_for(NAME)), timeout=60.0) as http,
        ThreadPoolExecutor(ALL_THREADS) as threads,
    ):
        url = f"{TOPIC}/subscriptions/billing/{path}"
        asked = [threads.submit(http.request, method, url, **body) for _ in range(ALL_THREADS)]
        try:
            wait_until(lambda: len(called) >= DATA_PLANE_THREADS, message="its threads are in use")
            layouts = [http.get(f"{TOPIC}/layout", timeout=10.0).status_code for _ in range(10)]
        finally:
            answers.set()
        assert layouts == [200] * 10
        assert {one.result().status_code for one in asked} == {200}
