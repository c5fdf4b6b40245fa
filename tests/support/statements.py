"""The statements that a test sends to databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event


@contextmanager
def statements_sent() -> Iterator[list[str]]:
    """Yield a list to which every statement that any engine sends is added during the block."""
    sent: list[str] = []

    def hear(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", hear)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", hear)
