"""Columns of the files: raw counter samples, key counts, and rates stored as history; and the table of samples that is landed.

A file of samples may have additional columns, which are not read, and must have these columns with exactly these
types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

SAMPLE_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.int64(), nullable=False),
        pa.field("segment_id", pa.int64(), nullable=False),
        pa.field("backing_topic", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("reader", pa.string(), nullable=False),
        pa.field("instant", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("msg_in", pa.int64(), nullable=False),
        pa.field("byte_in", pa.int64(), nullable=False),
        pa.field("msg_out", pa.int64(), nullable=False),
        pa.field("byte_out", pa.int64(), nullable=False),
    ]
)
"""Monotonic counters of one segment as one reader read them from one source at one instant. `reader` names the process
that read the counters and its clock, which was not set between two samples of one reader.
"""

KEY_COUNT_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.int64(), nullable=False),
        pa.field("segment_id", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("instant", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("producers", pa.int64(), nullable=False),
        pa.field("bins", pa.list_(pa.int64()), nullable=False),
    ]
)
"""Messages by the position of their keys in a segment's range (see `domain.key_sketch`), as producers counted them since
the previous instant, and the number of these producers. One row per segment, source (the worker to which the
producers reported) and instant.
"""

RATE_SCHEMA = pa.schema(
    [
        ("topic_id", pa.int64()),
        ("segment_id", pa.int64()),
        ("msg_rate_in", pa.float64()),
        ("byte_rate_in", pa.float64()),
        ("msg_rate_out", pa.float64()),
        ("byte_rate_out", pa.float64()),
        ("observed_at_ms", pa.int64()),
        ("covered_ms", pa.int64()),
        ("source", pa.string()),
    ]
)
"""Rates of one segment over one window, per second; `covered_ms` of the window was observed. If `covered_ms` is 0, the
counters decreased each time, and there are no rates.
"""


def difference(schema: pa.Schema, expected: pa.Schema = SAMPLE_SCHEMA) -> str | None:
    """Return the first column that is missing or has another type than expected, as text; None without a
    difference. Further columns do not count.
    """
    for field in expected:
        index = schema.get_field_index(field.name)
        if index < 0:
            return f"column {field.name} is missing"
        column_type = schema.field(index).type
        if column_type != field.type:
            return f"column {field.name} is {column_type}, not {field.type}"
    return None


class Sample(NamedTuple):
    """The monotonic counters of one segment, as one reader read them from one source at one instant. `instant_ms`
    is in milliseconds since the Unix epoch.
    """

    topic_id: int
    segment_id: int
    backing_topic: str
    source: str
    reader: str
    instant_ms: int
    msg_in: int
    byte_in: int
    msg_out: int
    byte_out: int


def sample_table(samples: Iterable[Sample]) -> pa.Table:
    """Return the samples as a table of SAMPLE_SCHEMA, in their order. Raises pyarrow's errors for a value that does
    not fit its column.
    """
    columns = list(zip(*samples, strict=True)) or [()] * len(Sample._fields)
    table = dict(zip(SAMPLE_SCHEMA.names, map(list, columns), strict=True))
    table["instant"] = [instant_ms * 1000 for instant_ms in table["instant"]]
    return pa.table(table).cast(SAMPLE_SCHEMA)
