"""Groups the rows of a statement about many topics by topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Row

RowsByTopic = defaultdict[int, list[Row[Any]]]
"""Rows by topic id. The list of a topic without rows is empty."""


def rows_by_topic(rows: Iterable[Row[Any]]) -> RowsByTopic:
    """Return the rows, which have a column `topic_id`, by topic id and in their order."""
    grouped: RowsByTopic = defaultdict(list)
    for row in rows:
        grouped[row.topic_id].append(row)
    return grouped
