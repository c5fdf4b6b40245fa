"""The journal, read in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.entrypoints.reach.columns import OPERATION, STUCK_OPERATION
from controller.entrypoints.reach.port import Row
from controller.entrypoints.reading import reading
from controller.store.postgres import inspection
from controller.store.topics import inspected

_OPERATIONS = """
    SELECT * FROM inspect.operations
     WHERE (CAST(:topic AS text) IS NULL OR topic = :topic) AND (live OR NOT :only_live)
     ORDER BY operation_id DESC LIMIT :limit"""
_STUCK = """
    SELECT * FROM inspect.stuck_operations
     WHERE CAST(:topic AS text) IS NULL OR topic = :topic ORDER BY operation_id DESC LIMIT :limit"""


class DirectOperations:
    """See `port.Operations`."""

    def list(self, *, topic: str | None, live: bool, limit: int) -> Sequence[Row]:
        """See `port.Operations`."""
        return _rows(_OPERATIONS, OPERATION, topic, only_live=live, limit=limit)

    def stuck(self, *, topic: str | None, limit: int) -> Sequence[Row]:
        """See `port.Operations`."""
        return _rows(_STUCK, STUCK_OPERATION, topic, limit=limit)


def _rows(statement: str, columns: Sequence[str], topic: str | None, **asked: object) -> Sequence[Row]:
    with reading() as tx:
        name = None if topic is None else inspected.demand_known(tx, topic)
        return [_row(row, columns) for row in inspection.rows(tx, statement, topic=name, **asked)]


def _row(row: Mapping[str, Any], columns: Sequence[str]) -> Row:
    """With the keys that every command has for segments."""
    pairs = [child.split(":") for child in row["children"]]
    creates = [{"segment_id": int(number), "hash_range": hash_range} for number, hash_range in pairs]
    whole = {**row, "children": [one["segment_id"] for one in creates], "creates": creates}
    return {column: whole[column] for column in columns}
