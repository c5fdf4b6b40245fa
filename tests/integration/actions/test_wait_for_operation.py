"""The wait of a caller for its operation while the connection to the database is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.actions.context import Caller, Context, Options
from controller.actions.wait_for_operation import run_to_its_end
from controller.bootstrap import Application
from controller.devstack.ports import free_port
from controller.domain.errors import StoreUnavailable
from controller.domain.operation import OperationState, Origin
from controller.services import operation_runner
from controller.services.operation_runner import Outcome, RunnerContext
from controller.services.segment_admin import splitting
from controller.settings import Settings
from controller.store.postgres.engine import Store
from tests.support.bench import Bench
from tests.support.relay import Relay


@pytest.fixture
def relay(database: str) -> Iterator[Relay]:
    """The way of `relayed` to the database."""
    with Relay.before(database) as relay:
        yield relay


@pytest.fixture
def relayed(database: str, relay: Relay) -> Iterator[Application]:
    """An application whose connections can be lost."""
    url = relay.url_of(database)
    app = Application(Settings(database_url=url), Store(url))
    yield app
    app.close()


def test_lost_connections_do_not_end_the_wait(
    bench: Bench, relayed: Application, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is lost while a worker is looked for, and one at the first attempt to run the operation."""
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    attempts = []
    run = operation_runner.run_operation

    def lose_and_run(context: RunnerContext, operation_id: int) -> Outcome:
        attempts.append(operation_id)
        if len(attempts) == 1:
            relay.lose_answer()
        return run(context, operation_id)

    monkeypatch.setattr(operation_runner, "run_operation", lose_and_run)
    relay.lose_answer()
    ended = run_to_its_end(relayed, operation.operation_id, 30.0)

    assert (ended.state, len(attempts)) == (OperationState.DONE, 2)


def test_a_caller_that_waits_in_vain_for_the_database_is_told_its_operation(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    app = Application(Settings(database_url=url), Store(url))
    caller = Caller("ada", Origin.API, "a test", "key")

    with pytest.raises(
        StoreUnavailable, match=rf"operation {operation.operation_id} .*PostgreSQL is unreach"
    ):
        Context(app, app.store, caller, Options(wait_seconds=0.2)).wait_for(operation)
