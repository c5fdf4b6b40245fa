"""Query plans of PostgreSQL for the statements that a function of the store sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event


def statements_of(tx: Connection, call: Callable[[], object]) -> list[tuple[str, Any]]:
    """Return the statements sent while `call` runs on `tx`, with their parameters."""
    sent: list[tuple[str, Any]] = []

    def note(*arguments: Any) -> None:
        sent.append((arguments[2], arguments[3]))

    event.listen(tx, "before_cursor_execute", note)
    try:
        call()
    finally:
        event.remove(tx, "before_cursor_execute", note)
    return sent


def plans_of(tx: Connection, call: Callable[[], object]) -> list[str]:
    """Return the plan of each statement that `call` sends. Statements that prepare others have none."""
    return [
        "\n".join(row[0] for row in tx.exec_driver_sql(f"EXPLAIN {statement}", parameters))
        for statement, parameters in statements_of(tx, call)
        if not statement.startswith("PREPARE ")
    ]
