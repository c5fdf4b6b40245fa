"""Operations as the journal returns them, for rules that need no journal."""

from __future__ import annotations

from typing import Any

from controller.domain.operation import MIRRORED, Operation, OperationKind, OperationState, Origin

DEADLINE_MS = 60_000


def make_operation(
    kind: OperationKind,
    state: OperationState = OperationState.INTENDED,
    *,
    on_broker: bool = False,
    **fields: Any,
) -> Operation:
    """Return operation 7 without children. `on_broker`: of a topic whose layout a broker keeps. `fields` replace the other fields."""
    defaults: dict[str, Any] = {
        "topic_id": 1,
        "topic_name": "topic://t/n/orders",
        "data_plane": "embedded",
        "origin": Origin.MANUAL,
        "actor": "tester",
        "reason": "test",
        "request_key": "key",
        "parameters": {MIRRORED: True} if on_broker else {},
        "subscription_version": 3,
        "deadline_at_ms": DEADLINE_MS,
    }
    return Operation(operation_id=7, kind=kind, state=state, **{**defaults, **fields})
