"""A worker with the rights of a controller, and no more, closes the gates of its splits and opens them when the parent is read."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import make_url

from controller.bootstrap import Application, build_worker
from controller.services import segment_admin
from controller.settings import Settings
from controller.store.postgres.engine import Store
from tests.support.gated_logs import GatedBench


@pytest.fixture
def bench(database: str) -> Iterator[GatedBench]:
    """See `GatedBench`."""
    bench = GatedBench(database)
    yield bench
    bench.close()


@pytest.fixture
def login(bench: GatedBench) -> Iterator[str]:
    """URL of a login in role cleave_controller."""
    name = f"cleave_login_{secrets.token_hex(4)}"
    bench.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret-word' IN ROLE cleave_controller")
    yield make_url(bench.url).set(username=name, password="secret-word").render_as_string(hide_password=False)
    bench.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@contextmanager
def working(bench: GatedBench, login: str) -> Iterator[None]:
    """A worker on the bench's logs."""
    settings = Settings(database_url=login)  # type: ignore[arg-type]
    store = Store(login, application_name="cleave-worker")
    with closing(Application(settings, store)) as app:
        app.__dict__["planes"] = bench.planes
        worker = build_worker(app)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join()


def test_a_worker_closes_and_opens_gates_with_the_rights_of_a_controller(
    bench: GatedBench, login: str
) -> None:
    bench.stock_topic()
    bench.publish(0)
    with working(bench, login):
        operation_id = bench.intend(segment_admin.splitting(0)).operation.operation_id
        bench.wait_until(lambda: not bench.operation(operation_id).state.is_live)
        assert bench.gate_rows() == {1: "closed", 2: "closed"}
        assert len(bench.closed_at_plane()) == 2

        bench.read(0)
        bench.wait_until(lambda: bench.gate_rows() == {1: "open", 2: "open"}, message="the gates open")
    assert bench.closed_at_plane() == set()
