"""Waiting for an operation somebody else runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from controller.domain.errors import OperationNotFound, Retryable
from controller.domain.operation import OperationState
from controller.services.operation_wait import wait_for
from controller.services.segment_admin import splitting
from tests.support.bench import Bench


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
