"""The SQL engine: computes rates of segments in PostgreSQL, for installations without Java.

Samples are copied into temporary tables of the loader's session; Cleave's own tables are not read.
`domain.counter_rates.judge_counters` decides in the same way which samples count; tests compare these statements with it. The engine is
meant for small fleets and for tests: a million samples take some seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, text

from controller.domain.counter_rates import MAX_SOURCE_LENGTH, MIN_DECREASE_RATIO
from controller.domain.counter_rates import for_each_metric as _each
from controller.domain.key_count_limits import PRODUCERS, SEGMENT_MESSAGES
from controller.domain.key_sketch import MOST_BINS
from controller.domain.load_window import LoadWindow
from controller.store.load.records import HEARD_SCHEMA, SKETCH_SCHEMA
from controller.store.postgres.arrow_copy import copy_in, copy_out

COLUMNS = (
    "topic_id",
    "segment_id",
    "source",
    "reader",
    "instant",
    "msg_in",
    "byte_in",
    "msg_out",
    "byte_out",
)
"""Columns of a sample that are read."""

KEY_COUNT_COLUMNS = ("topic_id", "segment_id", "source", "instant", "producers", "bins")
"""Columns of a key count that are read."""


_SAMPLE = f"""topic_id bigint, segment_id bigint, source text COLLATE "C", reader text COLLATE "C", instant_ms bigint,
    {_each("{c} bigint")}"""

_NAMED = f"length({{name}}) <= {MAX_SOURCE_LENGTH} AND strpos({{name}}, U&'\\FFFD') = 0"
_VALID = f"""
    least({_each("{c}")}) >= 0 AND source <> '' AND {_NAMED.format(name="source")} AND {_NAMED.format(name="reader")}
"""
"""Condition for a valid row, equal to SOUND of the Spark job."""

_RATES = f"""
CREATE TEMPORARY TABLE run_rate ON COMMIT DROP AS
WITH sample AS (
  SELECT topic_id, segment_id, reader, source, instant_ms, {_each("max({c}) AS {c}")}
    FROM run_sample
   WHERE instant_ms > :read_from_ms AND instant_ms <= :end_ms AND {_VALID}
   GROUP BY topic_id, segment_id, reader, source, instant_ms
), pair AS (
  SELECT *, lag(instant_ms) OVER by_time AS before_ms, {_each("{c} - lag({c}) OVER by_time AS {c}_more")}
    FROM sample WINDOW by_time AS (PARTITION BY topic_id, segment_id, reader, source ORDER BY instant_ms)
), checked AS (
  SELECT *, least({_each("{c}_more")}) >= 0 AND {
    _each(
        f"{{c}}_more / {MIN_DECREASE_RATIO} >= -least(0, lag({{c}}_more) OVER by_time, lead({{c}}_more) OVER by_time)",
        " AND ",
    )
} AS is_usable
    FROM pair WINDOW by_time AS (PARTITION BY topic_id, segment_id, reader, source ORDER BY instant_ms)
), part AS (
  SELECT *, CAST(overlap_ms AS float8) / (instant_ms - before_ms) AS share
    FROM checked CROSS JOIN LATERAL (SELECT instant_ms - greatest(before_ms, :start_ms) AS overlap_ms) o
   WHERE before_ms IS NOT NULL AND overlap_ms > 0
), by_reader AS (
  SELECT topic_id, segment_id, reader, CAST(least(coalesce(sum(overlap_ms) FILTER (WHERE is_usable), 0), :length_ms) AS bigint) AS covered_ms,
         {_each("sum({c}_more * share ORDER BY source, instant_ms) FILTER (WHERE is_usable) AS {c}")},
         max(instant_ms) FILTER (WHERE is_usable) AS observed_at_ms,
         (array_agg(source ORDER BY is_usable DESC, instant_ms DESC, source DESC))[1] AS source
    FROM part GROUP BY topic_id, segment_id, reader
)
SELECT DISTINCT ON (topic_id, segment_id)
       topic_id, segment_id, {
    _each("{c} * 1000 / nullif(covered_ms, 0) AS {m}")
}, observed_at_ms, covered_ms, source
  FROM by_reader ORDER BY topic_id, segment_id, covered_ms DESC, observed_at_ms DESC NULLS LAST, reader DESC
"""  # noqa: S608  # our own names only

_HEARD = f"""
CREATE TEMPORARY TABLE run_heard ON COMMIT DROP AS
SELECT source, max(instant_ms) FILTER (WHERE {_VALID}) AS observed_at_ms, count(*) FILTER (WHERE NOT ({_VALID})) AS set_aside,
       max(topic_id) FILTER (WHERE NOT ({_VALID})) AS topic_id
  FROM run_sample
 WHERE instant_ms > :start_ms AND instant_ms <= :end_ms GROUP BY source
"""  # noqa: S608  # our own names only

_SKETCHES = f"""
CREATE TEMPORARY TABLE run_sketch ON COMMIT DROP AS
WITH reported AS (
  SELECT c.*, coalesce(producers BETWEEN 0 AND {PRODUCERS} AND has_valid_bins, false) AS is_valid
    FROM run_key_count c
   CROSS JOIN LATERAL (
         SELECT count(*) BETWEEN 1 AND {MOST_BINS} AND min(messages) >= 0 AND sum(CAST(messages AS float8)) <= {SEGMENT_MESSAGES} AS has_valid_bins
           FROM unnest(bins) AS messages) s
   WHERE instant_ms > :since_ms AND instant_ms <= :until_ms
), summed AS (
  SELECT topic_id, segment_id, bin, CAST(sum(messages) AS bigint) AS messages
    FROM reported CROSS JOIN LATERAL unnest(bins) WITH ORDINALITY AS counted (messages, bin)
   WHERE is_valid
   GROUP BY topic_id, segment_id, bin
), whole AS (
  SELECT topic_id, segment_id, CAST(sum(messages) AS bigint) AS messages, array_agg(messages ORDER BY bin) AS bins
    FROM summed GROUP BY topic_id, segment_id
)
SELECT topic_id, segment_id, producers, coalesce(messages, 0) AS messages, coalesce(bins, '{{}}') AS bins, set_aside
  FROM (SELECT topic_id, segment_id, CAST(sum(most) AS bigint) AS producers, CAST(sum(invalid) AS bigint) AS set_aside
          FROM (SELECT topic_id, segment_id, coalesce(max(producers) FILTER (WHERE is_valid), 0) AS most,
                       count(*) FILTER (WHERE NOT is_valid) AS invalid
                  FROM reported GROUP BY topic_id, segment_id, source) of_source
         GROUP BY topic_id, segment_id) reporters
  LEFT JOIN whole USING (topic_id, segment_id)
"""  # noqa: S608  # our own names only


def aggregate(
    tx: Connection,
    samples: Iterable[pa.RecordBatch],
    window: LoadWindow,
    rates: pa.Schema,
) -> tuple[pa.Table, pa.Table]:
    """Return two tables: the rates of the window in the schema `rates`, one row per segment; and the sources of the
    samples, in the schema HEARD_SCHEMA. `samples` have COLUMNS. A sample with a missing value is ignored. A sample
    that is not valid only counts in `set_aside` of its source.

    An interval lies between two consecutive samples of one source and reader. An interval is usable if no counter
    decreased in the interval, and if no counter decreased in an adjacent interval by more than a tenth
    (`MIN_DECREASE_RATIO`) of the increase in the interval. The rates of a segment come from the reader whose usable
    intervals cover most of the window.

    A segment without an interval that overlaps the window has no row. A segment without a usable interval has a row
    with null rates and `covered_ms` 0. The function creates temporary tables in the transaction, and drops the tables
    before it returns. Raises the errors of `copy_in` and `copy_out`.
    """
    instants = {
        "read_from_ms": window.read_from_ms,
        "start_ms": window.start_ms,
        "end_ms": window.end_ms,
        "length_ms": window.length_ms,
    }
    _load(tx, "run_sample", _SAMPLE, (_in_ms(batch, COLUMNS) for batch in samples))
    for statement in (_RATES, _HEARD):
        names = {name for name in instants if f":{name}" in statement}
        tx.execute(text(statement), {name: instants[name] for name in names})
    tables = _fetch(tx, "run_rate", rates), _fetch(tx, "run_heard", HEARD_SCHEMA)
    tx.execute(text("DROP TABLE run_sample, run_rate, run_heard"))
    return tables


def sum_key_counts(
    tx: Connection, counts: Iterable[pa.RecordBatch], since_ms: int, until_ms: int
) -> pa.Table:
    """Return the sums of key counts for each segment, in the schema SKETCH_SCHEMA, from counts with times after
    `since_ms` and up to `until_ms` (milliseconds since the Unix epoch). `counts` have KEY_COUNT_COLUMNS.

    `producers` is the sum, over the sources, of the largest number of producers that the source reported. A row with
    a missing value is ignored. A row that is not valid only counts in `set_aside`, so a segment may have 0 messages
    and no bins. A segment without a row is absent.

    The function creates temporary tables in the transaction, and drops the tables before it returns. Raises the
    errors of `copy_in` and `copy_out`.
    """
    columns = 'topic_id bigint, segment_id bigint, source text COLLATE "C", instant_ms bigint, producers bigint, bins bigint[]'
    _load(tx, "run_key_count", columns, (_in_ms(batch, KEY_COUNT_COLUMNS) for batch in counts))
    tx.execute(text(_SKETCHES), {"since_ms": since_ms, "until_ms": until_ms})
    sums = _fetch(tx, "run_sketch", SKETCH_SCHEMA)
    tx.execute(text("DROP TABLE run_key_count, run_sketch"))
    return sums


def _in_ms(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return these columns of the batch, without rows that have a missing value. The column `instant` is
    replaced by `instant_ms`, in whole milliseconds since the Unix epoch, rounded down. A NUL in the name of
    a source or reader, which PostgreSQL cannot store, is replaced by U+FFFD, which makes the row invalid.
    """
    batch = batch.select(columns).drop_null()
    position = columns.index("instant")
    instants = batch.column(position).cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    for name in {"source", "reader"}.intersection(columns):
        storable = pc.replace_substring(batch[name], "\0", "\N{REPLACEMENT CHARACTER}")
        batch = batch.set_column(columns.index(name), name, storable)
    return batch.set_column(position, "instant_ms", instants)


def _load(tx: Connection, table: str, columns: str, batches: Iterable[pa.RecordBatch]) -> None:
    """Create the temporary table with these columns, and copy the batches into the table."""
    tx.execute(text(f"CREATE TEMPORARY TABLE {table} ({columns}) ON COMMIT DROP"))
    copy_in(tx, table, batches)


def _fetch(tx: Connection, table: str, schema: pa.Schema) -> pa.Table:
    """Return the columns of the schema from all rows of the table."""
    return copy_out(tx, f"SELECT {', '.join(schema.names)} FROM {table}", schema)  # noqa: S608  # our own names
