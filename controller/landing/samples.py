"""Converts samples to the table that is landed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from controller.landing.schemas import SAMPLE_SCHEMA


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
