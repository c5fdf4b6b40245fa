"""A 5.0.0-M1 broker shared by the run, a store of the test's own, and a topic on both."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.domain.operation import OperationState, Origin
from controller.services import topic_admin
from controller.services.operation_runner import RunnerContext, run_operation
from controller.store.journal import operations
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store
from tests.support.brokers import SharedBroker
from tests.support.scripted_broker import ScriptedBroker
from tests.support.waiting import wait_until

PLANE = "pulsar_scalable"


@pytest.fixture(scope="session")
def keeper(pulsar5_broker: SharedBroker) -> Iterator[PulsarScalableDataPlane]:
    """The adapter on the shared broker."""
    access = PulsarAccess(admin_url=pulsar5_broker.admin_url, service_url=pulsar5_broker.service_url)
    plane = PulsarScalableDataPlane(access, call_timeout_seconds=30.0)
    yield plane
    plane.close()


@pytest.fixture
def plane(broker: ScriptedBroker) -> Iterator[PulsarScalableDataPlane]:
    """An adapter on the scripted broker of the test."""
    access = PulsarAccess(admin_url=broker.url)
    with closing(PulsarScalableDataPlane(access, call_timeout_seconds=20.0)) as plane:
        yield plane


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    """A store in a migrated database of the test's own."""
    store = Store(database)
    yield store
    store.dispose()


@pytest.fixture
def topic(keeper: PulsarScalableDataPlane) -> Iterator[str]:
    """A scalable topic of two segments on the broker, unknown to Cleave, with the broker's auto-scaler set."""
    name = f"topic://public/default/t-{secrets.token_hex(4)}"
    keeper.create_topic(name, 2)
    keeper.set_auto_scaler(name, {"enabled": True, "maxSegments": 7})
    yield name
    keeper.delete_topic(name)


Finish = Callable[[Intent], OperationState]


@pytest.fixture
def finish(store: Store, keeper: PulsarScalableDataPlane) -> Finish:
    """Run the intended operation, unless a worker has it already, and say how it ended."""
    context = RunnerContext(store=store, planes={PLANE: keeper}, runner_id="test", lease_seconds=90.0)

    def ended(operation_id: int) -> OperationState | None:
        run_operation(context, operation_id)
        with store.transaction() as tx:
            state = operations.get_operation(tx, operation_id).state
        return None if state.is_live else state

    def run(intent: Intent) -> OperationState:
        state = wait_until(partial(ended, intent.operation.operation_id), timeout_seconds=100.0)
        assert state is not None
        return state

    return run


@pytest.fixture
def attached(store: Store, keeper: PulsarScalableDataPlane, topic: str, finish: Finish) -> str:
    """The topic, attached."""
    intent = topic_admin.attach_topic(store, {PLANE: keeper}, topic, request("attach"), data_plane=PLANE)
    assert finish(intent) is OperationState.DONE
    return topic


def request(why: str) -> Request:
    """A fresh manual request."""
    return Request(secrets.token_hex(8), Origin.MANUAL, "tester", why)
