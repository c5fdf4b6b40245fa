"""Waits until an operation has ended, for people and tasks that requested it and need its result.

The wait polls the journal with growing pauses, regardless of which process runs the operation. It writes
nothing. The operation continues while PostgreSQL is unavailable to the caller, so the wait does too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tenacity import (
    RetryError,
    Retrying,
    retry_if_exception,
    retry_if_result,
    stop_after_delay,
    wait_exponential,
)

from controller.domain.errors import Retryable, StoreRefused, StoreUnavailable
from controller.domain.operation import Operation
from controller.store.journal import operations
from controller.store.postgres.engine import Store

Result = TypeVar("Result")
_PAUSES = wait_exponential(multiplier=0.01, max=0.5)


def wait_for(store: Store, operation_id: int, timeout_seconds: float) -> Operation:
    """Wait until the operation's state is done or aborted, and return the operation; the caller checks which.
    Raises OperationNotFound, Retryable if the operation takes longer than `timeout_seconds`, and the errors of
    `through_outages`.
    """
    read = partial(store.in_transaction, operations.get_operation, operation_id)
    ends_at = time.monotonic() + timeout_seconds
    poll = Retrying(
        retry=retry_if_result(lambda operation: operation.state.is_live),
        wait=_PAUSES,
        stop=stop_after_delay(timeout_seconds),
    )
    try:
        return poll(lambda: through_outages(read, operation_id, ends_at - time.monotonic()))
    except RetryError as error:
        operation = error.last_attempt.result()
        raise Retryable(
            f"operation {operation_id} ({operation.kind} of {operation.topic_name}) is {operation.state} after "
            f"{round(timeout_seconds, 1):g} s; wait longer, check that a worker runs, or read inspect.stuck_operations"
        ) from error


def through_outages(act: Callable[[], Result], operation_id: int, timeout_seconds: float) -> Result:
    """Return the result of `act`, which belongs to the wait for the operation and is safe to repeat. Repeat `act`
    while PostgreSQL is unavailable, but not if it refuses the login.

    After `timeout_seconds` no further attempt begins. Raises StoreUnavailable (StoreRefused), whose message names
    the operation, and other errors of `act` unchanged.
    """
    attempts = Retrying(
        retry=retry_if_exception(_may_pass),
        wait=_PAUSES,
        stop=stop_after_delay(timeout_seconds),
        reraise=True,
    )
    try:
        return attempts(act)
    except StoreUnavailable as error:
        raise type(error)(f"the state of operation {operation_id} is unknown: {error}") from error


def _may_pass(error: BaseException) -> bool:
    """Return True if PostgreSQL is unavailable, False if it refuses the login or for any other error."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, StoreRefused)
