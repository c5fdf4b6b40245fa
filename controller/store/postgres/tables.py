"""Declares tables whose columns are written in bulk or by name. All other statements are SQL text.

The declarations serve to build statements. sql/schema defines types and rules.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnClause, TableClause, column, table
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import Integer


def _table(name: str, plain: str, *, arrays: str = "", documents: str = "") -> TableClause:
    """Return the declaration of a table of schema cleave. Each parameter holds the names of columns, separated by
    spaces: `plain` of any type, `arrays` of integer arrays, `documents` of JSON documents, in which None is NULL.
    """
    columns: list[ColumnClause[Any]] = [column(c) for c in plain.split()]
    columns += [column(c, ARRAY(Integer)) for c in arrays.split()]
    columns += [column(c, JSONB(none_as_null=True)) for c in documents.split()]
    return table(name, *columns, schema="cleave")


TOPIC = _table(
    "topic",
    "topic_id name namespace state data_plane epoch next_segment_id subscription_version row_version"
    " last_split_at last_merge_at last_rebucket_at last_consumer_act_at created_at deleted_at",
    documents="properties policy",
)
SEGMENT = _table(
    "segment",
    "topic_id segment_id range_start range_end state merge_depth created_epoch sealed_epoch pruned_epoch"
    " created_at sealed_at pruned_at backing_topic legacy_topic_name log_token",
    arrays="bucket_splits",
)
SEGMENT_PARENT = _table("segment_parent", "topic_id child_id parent_id ordinal")
OPERATION_PARENT = _table("operation_parent", "operation_id topic_id segment_id ordinal live")
OPERATION_CHILD = _table(
    "operation_child",
    "operation_id topic_id segment_id range_start range_end ordinal backing_topic",
    arrays="bucket_splits",
)
