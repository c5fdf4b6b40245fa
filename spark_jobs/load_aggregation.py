"""The load aggregation as Spark SQL: from counter samples to rates.

`controller.domain.counter_rates` (`judge_counters`) defines the result of the query of rates; differential tests
compare the two. One shuffle and one sort by (topic, segment, series, instant) serve all windows and sums; the sums
run in that order, so that they round as the definition does.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from controller.domain.counter_rates import MAX_SOURCE_LENGTH, MIN_DECREASE_RATIO
from controller.domain.counter_rates import for_each_metric as _each
from controller.domain.key_count_limits import PRODUCERS, SEGMENT_MESSAGES
from controller.domain.key_sketch import MOST_BINS
from controller.domain.load_window import LoadWindow

_IN_SPAN = "instant >= timestamp_millis(:{start} + 1) AND instant < timestamp_millis(:end_ms + 1)"
"""Condition for an instant within a span. Instants count in whole milliseconds; the form lets Spark push the bound down
to the Parquet reader.
"""

_NAMED = f"length({{name}}) <= {MAX_SOURCE_LENGTH} AND NOT contains({{name}}, '\\u0000') AND NOT contains({{name}}, '\\ufffd')"
SOUND = f"""
    least({_each("{c}")}) >= 0 AND source <> '' AND {_NAMED.format(name="source")} AND {_NAMED.format(name="reader")}
"""
"""Condition for a sample with valid counters, whose source and reader have names that PostgreSQL can store."""

_RATES = f"""
WITH numbered AS (  -- numbers in the order of the names, because numbers are sorted, sent and compared faster
  SELECT reader AS reader_name, source AS source_name,
         row_number() OVER (ORDER BY reader, source) AS series, dense_rank() OVER (ORDER BY reader) AS reader
    FROM (SELECT DISTINCT reader, source FROM {{samples}} WHERE {_IN_SPAN.format(start="read_from_ms")})
), instants AS (  -- several samples of one series at one instant count as one, with the greatest value of each counter
  SELECT topic_id, segment_id, reader, series, instant_ms, {_each("max({c}) OVER same AS {c}")},
         lead(struct(series, instant_ms)) OVER by_time AS following
    FROM (SELECT /*+ BROADCAST(n) */ topic_id, segment_id, n.reader, n.series, unix_millis(instant) AS instant_ms, {
    _each("{c}")
}
            FROM {{samples}} s JOIN numbered n ON n.source_name = s.source AND n.reader_name = s.reader
           WHERE {_IN_SPAN.format(start="read_from_ms")})
  WINDOW same AS (PARTITION BY topic_id, segment_id ORDER BY series, instant_ms
                  RANGE BETWEEN CURRENT ROW AND CURRENT ROW),
         by_time AS (PARTITION BY topic_id, segment_id ORDER BY series, instant_ms)
), befores AS (
  SELECT *, lag(series) OVER by_time AS series_before, lag(instant_ms) OVER by_time AS before_ms,
         {_each("lag({c}) OVER by_time AS {c}_before")}
    FROM instants WHERE following IS DISTINCT FROM struct(series, instant_ms)
  WINDOW by_time AS (PARTITION BY topic_id, segment_id ORDER BY series, instant_ms)
), pairs AS (
  SELECT *, {_each("if(series = series_before, {c} - {c}_before, NULL) AS {c}_more")} FROM befores
), judged AS (  -- an interval in which a counter decreased does not count, nor does an adjacent one that is too small in comparison
  SELECT *, least({_each("{c}_more")}) >= 0 AND {
    _each(
        f"{{c}}_more DIV {MIN_DECREASE_RATIO} >= -least(0, lag({{c}}_more) OVER by_time, lead({{c}}_more) OVER by_time)",
        " AND ",
    )
} AS counts
    FROM pairs
  WINDOW by_time AS (PARTITION BY topic_id, segment_id ORDER BY series, instant_ms)
), intervals AS (
  SELECT *, instant_ms - greatest(before_ms, :start_ms) AS overlap_ms
    FROM judged WHERE series = series_before AND instant_ms > :start_ms
), totals AS (  -- instant and series in one number: a million series fit
  SELECT topic_id, segment_id, reader, least(coalesce(sum(overlap_ms) FILTER (WHERE counts), 0), :length_ms) AS covered_ms,
         {_each("sum({c}_more * (overlap_ms / (instant_ms - before_ms))) FILTER (WHERE counts) AS {c}")},
         max(instant_ms * 1048576 + series) FILTER (WHERE counts) AS latest, max(instant_ms * 1048576 + series) AS read_last
    FROM intervals
   GROUP BY topic_id, segment_id, reader
), best AS (  -- readers read the same counters, so the reader that observed most of the window counts
  SELECT topic_id, segment_id,
         max(struct(covered_ms, latest DIV 1048576 AS observed_at_ms, reader, latest, read_last, {
    _each("{c}")
})) AS one
    FROM totals GROUP BY topic_id, segment_id
)
SELECT /*+ BROADCAST(n) */ topic_id, segment_id, {_each("one.{c} * 1000 / nullif(one.covered_ms, 0) AS {m}")},
       one.observed_at_ms, one.covered_ms, n.source_name AS source
  FROM best b JOIN numbered n ON n.series = coalesce(one.latest, one.read_last) % 1048576
"""

_HEARD = f"""
SELECT source, max(if(is_sound, unix_millis(instant), NULL)) AS observed_at_ms, count_if(NOT is_sound) AS set_aside,
       max(if(is_sound, NULL, topic_id)) AS topic_id
  FROM (SELECT *, {SOUND} AS is_sound FROM {{samples}}
         WHERE {_IN_SPAN.format(start="start_ms")})
 GROUP BY source
"""


_SKETCHES = f"""
WITH checked AS (  -- a row that no worker writes could make the sums of all segments overflow
  SELECT topic_id, segment_id, source, producers, bins,
         coalesce(producers BETWEEN 0 AND {PRODUCERS} AND size(bins) BETWEEN 1 AND {MOST_BINS}
                  AND forall(copy, one -> one >= 0) AND aggregate(copy, 0D, (total, one) -> total + one) <= {SEGMENT_MESSAGES},
                  false) AS is_sound
    FROM (SELECT *, slice(bins, 1, {MOST_BINS}) AS copy FROM {{counts}})  -- lambdas cannot read nulls from a Parquet page
   WHERE instant >= timestamp_millis(:since_ms + 1) AND instant < timestamp_millis(:until_ms + 1)
), summed AS (
  SELECT topic_id, segment_id, bin, sum(messages) AS messages
    FROM (SELECT topic_id, segment_id, posexplode(bins) AS (bin, messages) FROM checked WHERE is_sound)
   GROUP BY topic_id, segment_id, bin
), whole AS (
  SELECT topic_id, segment_id, sum(messages) AS messages,
         transform(array_sort(collect_list(struct(bin, messages))), one -> one.messages) AS bins
    FROM summed GROUP BY topic_id, segment_id
), reporters AS (  -- a worker reports the same producers repeatedly, different workers report different ones
  SELECT topic_id, segment_id, sum(producers) AS producers, sum(set_aside) AS set_aside
    FROM (SELECT topic_id, segment_id, source, max(if(is_sound, producers, 0)) AS producers, count_if(NOT is_sound) AS set_aside
            FROM checked GROUP BY topic_id, segment_id, source)
   GROUP BY topic_id, segment_id
)
SELECT t.topic_id, t.segment_id, t.producers, coalesce(w.messages, 0) AS messages,
       coalesce(w.bins, CAST(array() AS array<bigint>)) AS bins, t.set_aside
  FROM reporters t LEFT JOIN whole w ON w.topic_id = t.topic_id AND w.segment_id = t.segment_id
"""


def build_sketches(counts: DataFrame, since_ms: int, until_ms: int) -> DataFrame:
    """Return the key counts whose instants lie in (since, until], added up for each segment: topic_id, segment_id, producers (number of
    producers that sent counts), messages, bins (the key histogram; empty without messages), and set_aside, the number of the segment's
    rows that are excluded because their values are impossible.
    """
    return counts.sparkSession.sql(_SKETCHES, {"since_ms": since_ms, "until_ms": until_ms}, counts=counts)


def build_rates(samples: DataFrame, window: LoadWindow) -> DataFrame:
    """Return the rates of every segment that has an interval between two samples which ends in the window: topic_id, segment_id, four
    rates per second, observed_at_ms (end of the latest valid interval) and the source of that interval, and covered_ms, the milliseconds of
    the window in valid intervals. Of several readers of a segment, only the reader with the largest covered_ms counts. `samples` must be
    SOUND.

    If covered_ms is 0, a counter decreased in or next to each interval: the rates and observed_at_ms are null, and source is the source
    that was read last.
    """
    bounds = {
        "read_from_ms": window.read_from_ms,
        "start_ms": window.start_ms,
        "end_ms": window.end_ms,
        "length_ms": window.length_ms,
    }
    return samples.sparkSession.sql(_RATES, bounds, samples=samples)


def build_heard(samples: DataFrame, window: LoadWindow) -> DataFrame:
    """Return the sources that have samples in the window: source, observed_at_ms (instant of its last SOUND sample; null if it has none),
    set_aside, the number of its samples that are not SOUND, and topic_id, a topic of such a sample (null if there is none). `samples` are
    all samples, also those that are not SOUND.
    """
    bounds = {"start_ms": window.start_ms, "end_ms": window.end_ms}
    return samples.sparkSession.sql(_HEARD, bounds, samples=samples)
