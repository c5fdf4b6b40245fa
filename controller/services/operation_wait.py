"""Waits until an operation has ended, for people and tasks that requested it and need its result.

The wait polls the journal with growing pauses, regardless of which process runs the operation. It writes
nothing.
"""

from __future__ import annotations

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_exponential

from controller.domain.errors import Retryable
from controller.domain.operation import Operation
from controller.store.journal import operations
from controller.store.postgres.engine import Store


def wait_for(store: Store, operation_id: int, timeout_seconds: float) -> Operation:
    """Wait until the operation's state is done or aborted, and return the operation; the caller checks which.
    Raises OperationNotFound, StoreUnavailable, and Retryable if the operation takes longer than `timeout_seconds`.
    """
    poll = Retrying(
        retry=retry_if_result(lambda operation: operation.state.is_live),
        wait=wait_exponential(multiplier=0.01, max=0.5),
        stop=stop_after_delay(timeout_seconds),
    )
    try:
        return poll(lambda: store.in_transaction(operations.get_operation, operation_id))
    except RetryError as error:
        operation = error.last_attempt.result()
        raise Retryable(
            f"operation {operation_id} ({operation.kind} of {operation.topic_name}) is {operation.state} after "
            f"{timeout_seconds:g} s; wait longer, check that a worker runs, or read inspect.stuck_operations"
        ) from error
