"""A topic on a data plane, a worker that leads it, and the client of an application that knows the worker and its own login only."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from sqlalchemy import text

import pulsar_cleave as cleave
from controller.devstack.postgres import PostgresServer
from controller.devstack.serving import serving_leader, token_for
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic

PASSWORD = "of the application"


@dataclass(frozen=True)
class Shop:
    """The topic `topic`, with a bench that administers it, and the application's client."""

    bench: Bench
    client: cleave.Client
    worker: str
    login: cleave.EmbeddedAuth | None

    @property
    def topic(self) -> str:
        return self.bench.topic_name


def send(shop: Shop, count: int, *, keys: int = 3) -> None:
    """Send the numbers below `count`, of these keys in turn."""
    with shop.client.producer(shop.topic) as producer:
        for number in range(count):
            producer.send(b"%d" % number, key=f"k{number % keys}")


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    """What is to be done at the end, in reverse order."""
    with ExitStack() as ends:
        yield ends


@pytest.fixture(params=["embedded", pytest.param("pulsar", marks=pytest.mark.pulsar)])
def shop(
    request: pytest.FixtureRequest, database: str, postgres_server: PostgresServer, ends: ExitStack
) -> Shop:
    """See `Shop`; on each data plane."""
    if request.param == "embedded":
        return embedded_shop(Bench(database), ends)
    broker = request.getfixturevalue("pulsar_broker")
    here = PulsarTopic.fresh(broker.admin_url, broker.service_url, f"shop-{secrets.token_hex(4)}")
    bench = Bench(database, here)
    ends.callback(bench.close)
    addresses = {"pulsar_admin_url": here.admin_url, "pulsar_service_url": here.service_url}
    worker = ends.enter_context(serving_leader(database, call_timeout_seconds=25.0, **addresses))
    client = cleave.Client(worker, token_for(here.topic), call_timeout_seconds=25.0)
    ends.callback(client.close)
    return Shop(bench, client, worker, None)


def embedded_shop(bench: Bench, ends: ExitStack) -> Shop:
    """An application with a login of its own at the embedded logs."""
    ends.callback(bench.close)
    user = f"shop_{secrets.token_hex(4)}"
    with bench.store.transaction() as tx:
        tx.execute(text(f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}' IN ROLE cleave_client"))

    def drop() -> None:
        with bench.store.transaction() as tx:
            tx.execute(text(f"DROP ROLE {user}"))

    ends.callback(drop)
    worker = ends.enter_context(serving_leader(bench.url))
    login = cleave.EmbeddedAuth(user=user, password=PASSWORD)
    client = cleave.Client(worker, token_for(bench.topic_name), embedded=login, call_timeout_seconds=10.0)
    ends.callback(client.close)
    return Shop(bench, client, worker, login)
