"""Waiting for an operation somebody else runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from controller.devstack.ports import free_port
from controller.domain.errors import OperationNotFound, Retryable, StoreRefused, StoreUnavailable
from controller.domain.operation import OperationState
from controller.services.operation_wait import wait_for
from controller.services.segment_admin import splitting
from controller.store.postgres.engine import Store
from tests.support.bench import Bench
from tests.support.relay import Relay


def test_it_returns_the_operation_once_somebody_has_run_it(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_for, bench.store, operation.operation_id, 30.0)
        bench.drive(operation.operation_id)

    assert waiting.result().state is OperationState.DONE


def test_it_says_how_far_the_operation_is_when_time_is_up(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation

    with pytest.raises(Retryable, match=r"split of topic://acme/shop/orders\) is intended"):
        wait_for(bench.store, operation.operation_id, 0.05)


def test_an_operation_that_is_not_there_is_not_waited_for(bench: Bench) -> None:
    with pytest.raises(OperationNotFound):
        wait_for(bench.store, 4711, 30.0)


def test_a_lost_connection_does_not_end_the_wait(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    bench.drive(operation.operation_id)

    with Relay.before(bench.url) as relay:
        store = Store(relay.url_of(bench.url))
        relay.lose_answer()
        ended = wait_for(store, operation.operation_id, 30.0)
        store.dispose()

    assert ended.state is OperationState.DONE


def test_an_outage_longer_than_the_wait_names_the_operation() -> None:
    store = Store(f"postgresql://nobody@127.0.0.1:{free_port()}/nothing")

    with pytest.raises(StoreUnavailable, match=r"operation 4711 .*PostgreSQL is unreachable"):
        wait_for(store, 4711, 0.05)


def test_a_refused_login_ends_the_wait_at_once() -> None:
    """Nobody corrects it by waiting."""
    store = Mock(Store)
    store.in_transaction.side_effect = StoreRefused("PostgreSQL refuses the connection: no such user")

    with pytest.raises(StoreRefused, match=r"operation 4711 .*no such user"):
        wait_for(store, 4711, 30.0)
    assert store.in_transaction.call_count == 1
