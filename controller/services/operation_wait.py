"""Wait until an operation has ended: for people and tasks that asked for it and want to see the result.

It looks at the journal with growing pauses, whoever runs the operation. Nothing here writes.
"""

from __future__ import annotations

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_exponential

from controller.domain.errors import Retryable
from controller.domain.operation import Operation
from controller.store.journal import operations
from controller.store.postgres.engine import Store


def wait_for(store: Store, operation_id: int, timeout_seconds: float) -> Operation:
    """The operation once it is done or aborted (look at its state). Raises Retryable when it takes longer."""
    look = Retrying(
        retry=retry_if_result(lambda operation: operation.state.is_live),
        wait=wait_exponential(multiplier=0.01, max=0.5),
        stop=stop_after_delay(timeout_seconds),
    )
    try:
        return look(_get, store, operation_id)
    except RetryError as error:
        operation = error.last_attempt.result()
        raise Retryable(
            f"operation {operation_id} ({operation.kind} of {operation.topic_name}) is {operation.state} after "
            f"{timeout_seconds:g} s; wait longer, see that a worker is up, or look at inspect.stuck_operations"
        ) from error


def _get(store: Store, operation_id: int) -> Operation:
    with store.transaction() as tx:
        return operations.get_operation(tx, operation_id)
