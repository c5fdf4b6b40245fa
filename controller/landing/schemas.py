"""Columns of the files: raw counter samples, counts of keys, and rates kept as history.

A file of samples may carry more columns (they are not read), and it must carry these with exactly these types.
"""

from __future__ import annotations

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
"""Monotonic counters of one segment as one reader read them from one source at one instant. `reader` names who read and by which
clock, which was never set between two samples of one reader.
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
"""Messages by where in a segment's range their keys lie (see `domain.key_sketch`), as producers counted them since the instant
before, and how many producers these were. One row a segment, source (a worker that they told) and instant.
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
"""Rates of one segment over one window, per second; `covered_ms` of the window was observed. If it is 0, the counters went back each
time, and there are no rates.
"""


def difference(schema: pa.Schema, wanted: pa.Schema = SAMPLE_SCHEMA) -> str | None:
    """How a file's schema differs from the one wanted, for people; None where it does not."""
    for field in wanted:
        index = schema.get_field_index(field.name)
        if index < 0:
            return f"column {field.name} is missing"
        found = schema.field(index).type
        if found != field.type:
            return f"column {field.name} is {found}, not {field.type}"
    return None
