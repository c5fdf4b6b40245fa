"""Figures of namespace bundles as Spark SQL, computed from landed reports of brokers.

A topic lies in the bundle that contains the crc32 of its name: an as-of join of hashes to boundaries (upper ends
exclusive, the last one inclusive), computed as one sort of topics and boundaries together by namespace and hash. The
sums run in that order, so that they round identically on every run. `bundle_load_changes` selects the figures to
write.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from controller.domain.errors import InvalidInput

SIGNALS = ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")
RATES = ("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out")
COUNTS = ("topic_count", "producer_count", "consumer_count")


@dataclass(frozen=True, slots=True)
class ReportWindow:
    """Window of reports. A report counts if it was taken in `(end_ms - length_ms, end_ms]`, and a broker without a
    report for `gone_after_ms` is gone. Raises InvalidInput unless 0 < length <= gone.
    """

    end_ms: int
    length_ms: int = 180_000
    gone_after_ms: int = 1_800_000

    def __post_init__(self) -> None:
        if not 0 < self.length_ms <= self.gone_after_ms:
            raise InvalidInput(
                f"a window of {self.length_ms} ms and brokers gone after {self.gone_after_ms} ms: "
                "give 0 < window <= gone"
            )

    @property
    def start_ms(self) -> int:
        """Instant up to and including which reports do not count."""
        return self.end_ms - self.length_ms

    @property
    def gone_ms(self) -> int:
        """Instant at or before which a broker's last report makes the broker count as gone."""
        return self.end_ms - self.gone_after_ms


MOST = 2**50
"""Upper bound of a rate or count of a topic or broker. Millions of values below it can be added up."""
LONGEST_NAME = 512
"""Maximum number of characters in the name of a namespace or a broker: the name is part of a key in PostgreSQL."""


def _all(template: str, names: tuple[str, ...]) -> str:
    """Return an SQL condition: for each of the names `template` with the name in place of `{m}`, joined by AND."""
    return " AND ".join(template.format(m=name) for name in names)


_STORABLE = "length({m}) <= " + str(LONGEST_NAME) + r" AND NOT contains({m}, '\u0000')"
SOUND_TOPIC = f"{_all(f'{{m}} BETWEEN 0 AND {MOST}', RATES + COUNTS[1:])} AND {_all(_STORABLE, ('namespace', 'broker'))}"
"""Condition for a topic whose figures can be added up. A report with any other topic is excluded completely."""
SOUND_OWNED = f"cache_size_bytes BETWEEN 0 AND {MOST} AND {_all(_STORABLE, ('namespace', 'broker'))}"
"""Condition for a bundle in the report of its owner, with a valid size of its cache and names that PostgreSQL can
store.
"""
_SOUND_BROKER = f"""
    {_all(f"abs({{m}}_usage) <= {MOST} AND abs({{m}}_limit) <= {MOST}", SIGNALS)} AND {_all(_STORABLE, ("broker", "version"))}
    AND report IN ('load-report', 'metrics')
"""
SOUND_BOUNDARIES = rf"""
    size(boundaries) >= 2 AND try_element_at(boundaries, 1) = 0 AND try_element_at(boundaries, -1) = 4294967295
    AND boundaries = array_sort(array_distinct(boundaries)) AND namespace RLIKE r'^[^/\s]+/[^/\s]+$' AND {_STORABLE.format(m="namespace")}
"""
"""Condition for boundaries that tile the space of hashes, of a namespace with a valid name."""

_REPORTS = f"""
WITH counted AS (
  SELECT cluster, broker, instant_ms, count_if({SOUND_TOPIC}) AS topics, count_if(NOT coalesce({SOUND_TOPIC}, false)) AS unsound
    FROM {{topics}} WHERE instant_ms > :start_ms AND instant_ms <= :end_ms
   GROUP BY cluster, broker, instant_ms
)
SELECT b.cluster, b.broker, max(if(b.is_sound AND b.topic_count = coalesce(c.topics, 0), b.instant_ms, NULL)) AS instant_ms,
       sum(coalesce(c.unsound, 0) + if(b.is_sound, 0, 1)) AS set_aside
  FROM (SELECT *, {_SOUND_BROKER} AS is_sound FROM {{brokers}}) b LEFT JOIN counted c USING (cluster, broker, instant_ms)
 WHERE b.instant_ms > :start_ms AND b.instant_ms <= :end_ms
 GROUP BY b.cluster, b.broker
"""

_NAMESPACES = """
WITH latest AS (
  SELECT cluster, namespace, max_by(boundaries, instant_ms) AS boundaries, max(instant_ms) AS instant_ms
    FROM {boundaries} WHERE instant_ms <= :end_ms
   GROUP BY cluster, namespace
), known AS (
  SELECT cluster, namespace, l.boundaries, l.instant_ms, s.boundaries AS stored,
         coalesce(s.row_version, 0) AS row_version,
         s.row_version IS NULL OR coalesce(l.instant_ms > s.boundaries_at_ms, false) AS is_newer
    FROM latest l FULL JOIN {stored_boundaries} s USING (cluster, namespace)
)
SELECT k.cluster, k.namespace, if(is_newer, boundaries, stored) AS boundaries,
       instant_ms AS boundaries_at_ms, row_version,
       is_newer AND boundaries IS DISTINCT FROM stored AS is_changed
  FROM known k LEFT SEMI JOIN {reports} r ON r.cluster = k.cluster
"""


def _each(template: str, names: tuple[str, ...] = RATES + COUNTS[1:]) -> str:
    """Return an SQL list: for each of the names `template` with the name in place of `{m}`, joined by commas."""
    return ", ".join(template.format(m=name) for name in names)


_FIGURES = f"""
WITH edge AS (
  SELECT cluster, namespace, e.lower_bound, e.upper_bound
    FROM {{namespaces}}
 LATERAL VIEW inline(arrays_zip(slice(boundaries, 1, size(boundaries) - 1),
                                slice(boundaries, 2, size(boundaries) - 1))) e
           AS lower_bound, upper_bound
), placed AS (
  SELECT cluster, namespace, lower_bound AS place, 0 AS is_topic, '' AS topic, 0L AS instant_ms, '' AS broker,
         {_each("0D AS {m}", RATES)}, {_each("0L AS {m}", COUNTS[1:])}, upper_bound
    FROM edge
   UNION ALL
  SELECT /*+ BROADCAST(r) */ t.cluster, t.namespace, crc32(t.topic), 1, t.topic, t.instant_ms, t.broker,
         {_each("t.{m}")}, CAST(NULL AS bigint)
    FROM {{topics}} t JOIN {{reports}} r
      ON r.cluster = t.cluster AND r.broker = t.broker AND r.instant_ms = t.instant_ms
), found AS (  -- a boundary comes before the topics with its hash, because they belong to the bundle that begins there
  SELECT *, max(if(is_topic = 0, place, NULL)) OVER along AS lower_bound, max(upper_bound) OVER along AS bundle_end,
         lead(topic) OVER along AS topic_after
    FROM placed
  WINDOW along AS (PARTITION BY cluster, namespace ORDER BY place, is_topic, topic, instant_ms, broker)
), summed AS (  -- a topic that moved is in two reports, of which the later one counts
  SELECT cluster, namespace, lower_bound, bundle_end AS upper_bound, {_each("sum({m}) AS {m}")},
         sum(CAST(is_topic AS bigint)) AS topic_count, max(struct(instant_ms, broker)) AS last_report
    FROM found
   WHERE lower_bound IS NOT NULL AND (is_topic = 0 OR coalesce(topic_after, '') <> topic)
   GROUP BY cluster, namespace, lower_bound, bundle_end
), owner AS (
  SELECT /*+ BROADCAST(r) */ o.cluster, o.namespace, o.lower_bound, o.upper_bound,
         max(struct(o.instant_ms, o.broker, o.cache_size_bytes)) AS last_report
    FROM {{owned}} o JOIN {{reports}} r
      ON r.cluster = o.cluster AND r.broker = o.broker AND r.instant_ms = o.instant_ms
   GROUP BY o.cluster, o.namespace, o.lower_bound, o.upper_bound
)
SELECT cluster, namespace, lower_bound, upper_bound, coalesce(o.last_report.broker, nullif(s.last_report.broker, '')) AS broker,
       {_each("s.{m}", RATES)}, {_each("s.{m}", COUNTS)}, coalesce(o.last_report.cache_size_bytes, 0) AS cache_size_bytes,
       coalesce(o.last_report.instant_ms, nullif(s.last_report.instant_ms, 0)) AS observed_at_ms
  FROM summed s LEFT JOIN owner o USING (cluster, namespace, lower_bound, upper_bound)
"""


def build_reports(topics: DataFrame, brokers: DataFrame, window: ReportWindow) -> DataFrame:
    """Return a row for each broker with a report in the window: cluster, broker, instant_ms of its latest sound report of which all
    topics have landed and are sound (null if there is none), and set_aside, the number of rows of its reports that are not sound.
    `topics` and `brokers` are all landed rows of these kinds.
    """
    bounds = {"start_ms": window.start_ms, "end_ms": window.end_ms}
    return topics.sparkSession.sql(_REPORTS, bounds, topics=topics, brokers=brokers)


def build_unsound_boundaries(boundaries: DataFrame) -> DataFrame:
    """Return the namespaces with landed boundaries that are not sound (`SOUND_BOUNDARIES`): cluster, namespace, and
    set_aside, the number of landed rows that are not sound.
    """
    unsound = boundaries.where(f"NOT coalesce({SOUND_BOUNDARIES}, false)")
    return unsound.groupBy("cluster", "namespace").count().withColumnRenamed("count", "set_aside")


def build_namespaces(
    boundaries: DataFrame, reports: DataFrame, stored_boundaries: DataFrame, window: ReportWindow
) -> DataFrame:
    """Return the boundaries in force of every namespace of the clusters in `reports`: the landed boundaries if they were read later than
    the stored ones, otherwise the stored boundaries. `boundaries` are the sound landed rows.

    Columns: cluster, namespace, boundaries, boundaries_at_ms (time of the latest landed boundaries; null if none landed),
    row_version of the stored boundaries (0: never stored), and is_changed, true if the boundaries are to be written.
    """
    tables = {"boundaries": boundaries, "reports": reports, "stored_boundaries": stored_boundaries}
    return boundaries.sparkSession.sql(_NAMESPACES, {"end_ms": window.end_ms}, **tables)


def build(topics: DataFrame, owned: DataFrame, reports: DataFrame, namespaces: DataFrame) -> DataFrame:
    """Return the figures of every bundle of `namespaces`, empty ones included.

    `topics` and `owned` are the sound landed rows (`SOUND_TOPIC`, `SOUND_OWNED`). Only rows of the reports in `reports` (cluster, broker,
    instant_ms) count, and a topic in two reports counts in the later one. Columns: cluster, namespace, lower_bound, upper_bound, broker
    (the owner, otherwise the broker that reported topics of the bundle, otherwise null), four rates per second, topic_count,
    producer_count, consumer_count, cache_size_bytes, observed_at_ms (null without a report). Topics of a namespace with unknown
    boundaries are in no bundle.
    """
    return topics.sparkSession.sql(
        _FIGURES, topics=topics, owned=owned, reports=reports, namespaces=namespaces
    )
