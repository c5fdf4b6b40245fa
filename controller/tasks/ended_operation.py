"""Reads whether an operation has ended, regardless of its requester and its runner.

`responses.demand_done` decides that an aborted operation is an error.
"""

from __future__ import annotations

from typing import Any

from controller.actions.responses import OperationDocument, demand_done, operation_fields
from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.whole_numbers import from_digits
from controller.store.journal import operations
from controller.tasks.application_of_connection import Extras, cleave_at


def ended_operation(*, dsn: str, extras: Extras, operation_id: int | str) -> dict[str, Any] | None:
    """Return the operation once it is done; None while it is in progress. Does not wait. Raises Terminal if
    the operation was aborted, OperationNotFound, InvalidInput for a value that is no id.
    """
    text = operation_id.strip() if isinstance(operation_id, str) else shown(operation_id)
    number = from_digits(text)
    if number is None:
        raise InvalidInput(
            f"operation_id={shown(operation_id)} must be the id of an operation, which is a whole number"
        )
    with cleave_at(dsn, extras) as app, app.store.transaction() as tx:
        operation = operations.get_operation(tx, number)
    if operation.state.is_live:
        return None
    return OperationDocument(**operation_fields(demand_done(operation))).model_dump(mode="json")
