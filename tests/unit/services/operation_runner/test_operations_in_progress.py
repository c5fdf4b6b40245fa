"""Operations that the threads of one runner step, told apart by their claims."""

from __future__ import annotations

from controller.domain.operation import OperationKind, OperationState
from controller.services.operation_runner.operations_in_progress import OperationsInProgress
from tests.support.operations import make_operation

FIRST, LATER = (
    make_operation(OperationKind.SPLIT, OperationState.PREPARED, claim_term=term) for term in (1, 2)
)


def test_the_end_of_an_earlier_claim_leaves_the_later_claim_of_another_thread() -> None:
    in_progress = OperationsInProgress()
    in_progress.add([FIRST], until=100.0)
    in_progress.add([LATER], until=200.0)

    in_progress.remove([FIRST])
    assert in_progress.operation_ids(50.0) == [LATER.operation_id]

    in_progress.remove([LATER])
    assert in_progress.operation_ids(50.0) == []


def test_a_claim_that_another_runner_may_take_over_does_not_count() -> None:
    in_progress = OperationsInProgress()
    in_progress.add([FIRST], until=100.0)

    assert in_progress.operation_ids(99.0) == [FIRST.operation_id]
    assert in_progress.operation_ids(100.0) == []
