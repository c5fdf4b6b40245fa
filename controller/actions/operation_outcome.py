"""The result of an operation that has ended: the operation if it is done, an error if it was aborted."""

from __future__ import annotations

from controller.domain.errors import Terminal
from controller.domain.operation import Operation, OperationState


def demand_done(operation: Operation) -> Operation:
    """Return the operation unchanged, done or still in progress. Raises Terminal if it was aborted."""
    if operation.state is OperationState.ABORTED:
        raise aborted(operation.operation_id, operation.kind, operation.topic_name, operation.last_error)
    return operation


def aborted(operation_id: int | None, kind: str, topic: str, reason: str | None) -> Terminal:
    """Return the error about an aborted operation; it is not raised here. `reason` None: the journal has no reason."""
    return Terminal(
        f"operation {operation_id} ({kind} of {topic}) was aborted: {reason or 'no reason is recorded'}"
    )
