"""Health of a process over HTTP: alive without its database, healthy with it."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge, Metric

from controller.commands.metrics_server import serve_metrics
from controller.devstack.ports import free_port, release_port
from controller.devstack.postgres import PostgresServer
from controller.domain.errors import InvalidInput
from tests.support.relay import Relay


def get(port: int, path: str) -> tuple[int, str]:
    """Status and text of the answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def port() -> int:
    """A free port; a server on it lasts as long as the test process."""
    return free_port()


def test_a_process_with_its_database_is_healthy_and_serves_its_metrics(
    port: int, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
    registry = CollectorRegistry()
    Gauge("of_this_test", "One.", registry=registry).set(1)

    serve_metrics("127.0.0.1", port, registry)

    assert get(port, "/live") == (200, "ok\n")
    assert get(port, "/health") == (200, "ok\n")
    assert "of_this_test 1.0" in get(port, "/metrics")[1]


def test_a_process_with_a_refused_login_is_alive_and_not_healthy(
    port: int, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "CLEAVE_DATABASE_URL", postgres_server.url("postgres", user="nobody_here", password="p")
    )

    serve_metrics("127.0.0.1", port, CollectorRegistry())

    status, reason = get(port, "/health")
    assert (status, get(port, "/live")) == (503, (200, "ok\n"))
    assert "nobody_here" in reason
    assert ":p@" not in reason


def test_a_port_that_is_taken_is_named(port: int) -> None:
    serve_metrics("127.0.0.1", port, CollectorRegistry())

    with pytest.raises(
        InvalidInput, match=f"metrics cannot be served at 127.0.0.1:{port}: .*; choose another"
    ):
        serve_metrics("127.0.0.1", port, CollectorRegistry())
    release_port(port)


def test_a_host_name_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"metrics cannot be served at é\.\.x:0: "):
        serve_metrics("é..x", 0, CollectorRegistry())


def test_a_process_is_unhealthy_while_its_database_does_not_answer(
    port: int, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check gives up long before other statements do, and before a probe loses patience."""
    with Relay.before(database) as relay:
        monkeypatch.setenv("CLEAVE_DATABASE_URL", relay.url_of(database))
        serve_metrics("127.0.0.1", port, CollectorRegistry())
        assert get(port, "/health") == (200, "ok\n")

        relay.stall()
        assert (get(port, "/health")[0], get(port, "/live")) == (503, (200, "ok\n"))

        relay.resume()
        assert get(port, "/health") == (200, "ok\n")


class SlowMetrics:
    """Metrics that are not collected until they may be."""

    def __init__(self) -> None:
        self.is_asked, self.may_end = threading.Event(), threading.Event()

    def describe(self) -> list[Metric]:
        """None, so that registering collects nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Waits."""
        self.is_asked.set()
        self.may_end.wait()
        yield from ()


def test_a_slow_scrape_does_not_delay_a_health_check(
    port: int, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
    slow, registry = SlowMetrics(), CollectorRegistry()
    registry.register(slow)
    serve_metrics("127.0.0.1", port, registry)
    scrape = threading.Thread(target=get, args=(port, "/metrics"))
    scrape.start()
    try:
        assert slow.is_asked.wait(20)
        assert (get(port, "/live"), get(port, "/health")) == ((200, "ok\n"), (200, "ok\n"))
    finally:
        slow.may_end.set()
        scrape.join()
