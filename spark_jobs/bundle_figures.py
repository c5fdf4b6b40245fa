"""Figures of namespace bundles as Spark SQL, computed from landed reports of brokers, and the changes that a run writes.

A topic lies in the bundle that contains the crc32 of its name: an as-of join of hashes to boundaries (upper ends
exclusive, the last one inclusive), computed as one sort of topics and boundaries together by namespace and hash. The
sums run in that order, so that they round identically on every run.

The changes are the figures that differ from the stored ones, and the sums over namespaces, brokers and clusters. A bundle whose owner
reported nothing in the window keeps its stored figures, until the broker counts as gone: a missing report does not mean a load of 0. Only
differences are written, each row with the version from which it was computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from controller.domain.errors import InvalidInput

SIGNALS = ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")
RATES = ("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out")
COUNTS = ("topic_count", "producer_count", "consumer_count")
_SUMMED = RATES + COUNTS[1:]


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


def _each(template: str, names: Sequence[str], separator: str = ", ") -> str:
    """Return SQL text: `template` with each of the names in place of `{m}`, joined by `separator`."""
    return separator.join(template.format(m=name) for name in names)


_STORABLE = "length({m}) <= " + str(LONGEST_NAME) + r" AND NOT contains({m}, '\u0000')"
SOUND_TOPIC = f"{_each(f'{{m}} BETWEEN 0 AND {MOST}', RATES + COUNTS[1:], ' AND ')} AND {_each(_STORABLE, ('namespace', 'broker'), ' AND ')}"
"""Condition for a topic whose figures can be added up. A report with any other topic is excluded completely."""
SOUND_OWNED = (
    f"cache_size_bytes BETWEEN 0 AND {MOST} AND {_each(_STORABLE, ('namespace', 'broker'), ' AND ')}"
)
"""Condition for a bundle in the report of its owner, with a valid size of its cache and names that PostgreSQL can
store.
"""
_SOUND_BROKER = f"""
    {_each(f"abs({{m}}_usage) <= {MOST} AND abs({{m}}_limit) <= {MOST}", SIGNALS, " AND ")} AND {_each(_STORABLE, ("broker", "version"), " AND ")}
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
         {_each("t.{m}", _SUMMED)}, CAST(NULL AS bigint)
    FROM {{topics}} t JOIN {{reports}} r
      ON r.cluster = t.cluster AND r.broker = t.broker AND r.instant_ms = t.instant_ms
), found AS (  -- a boundary comes before the topics with its hash, because they belong to the bundle that begins there
  SELECT *, max(if(is_topic = 0, place, NULL)) OVER along AS lower_bound, max(upper_bound) OVER along AS bundle_end,
         lead(topic) OVER along AS topic_after
    FROM placed
  WINDOW along AS (PARTITION BY cluster, namespace ORDER BY place, is_topic, topic, instant_ms, broker)
), summed AS (  -- a topic that moved is in two reports, of which the later one counts
  SELECT cluster, namespace, lower_bound, bundle_end AS upper_bound, {_each("sum({m}) AS {m}", _SUMMED)},
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


_USAGES = tuple(f"{signal}_{part}" for signal in SIGNALS for part in ("usage", "limit"))
_BUNDLE_FIGURES = (*RATES, *COUNTS, "cache_size_bytes")


_JUDGED = f"""
WITH clusters AS (
  SELECT DISTINCT cluster FROM {{reports}}
), silent AS (
  SELECT b.cluster AS silent_cluster, b.broker AS silent_broker
    FROM {{stored_brokers}} b LEFT ANTI JOIN {{reports}} r ON r.cluster = b.cluster AND r.broker = b.broker
   WHERE b.observed_at_ms > :gone_ms
), judged AS (
  SELECT cluster, namespace, lower_bound, f.upper_bound, f.broker, {_each("f.{m}", _BUNDLE_FIGURES)}, f.observed_at_ms,
         s.upper_bound AS upper_was, s.broker AS broker_was, {_each("s.{m} AS {m}_was", _BUNDLE_FIGURES)}, s.modified_at_ms,
         coalesce(s.row_version, 0) AS seen_row_version, coalesce(n.is_changed, false) AS is_recut, n.row_version,
         f.lower_bound IS NOT NULL AS is_there,
         coalesce(f.broker IS NULL AND s.upper_bound = f.upper_bound AND silent_broker IS NOT NULL, false) AS is_silent
    FROM {{figures}} f
    FULL JOIN (SELECT * FROM {{stored_bundles}} b LEFT SEMI JOIN clusters c ON c.cluster = b.cluster) s
   USING (cluster, namespace, lower_bound)
    LEFT JOIN silent ON silent_cluster = s.cluster AND silent_broker = s.broker
    LEFT JOIN {{namespaces}} n USING (cluster, namespace)
)
SELECT cluster, namespace, lower_bound, coalesce(upper_bound, upper_was) AS upper_bound,
       if(is_there AND NOT is_silent, broker, broker_was) AS broker,
       {_each("if(is_there AND NOT is_silent, {m}, {m}_was) AS {m}", _BUNDLE_FIGURES)},
       if(is_there AND NOT is_silent, coalesce(observed_at_ms, :end_ms), modified_at_ms) AS modified_at_ms,
       seen_row_version, if(is_recut, 0L, row_version) AS seen_namespace_version, NOT is_there AS gone,
       NOT is_silent AND (NOT is_there OR seen_row_version = 0 OR upper_bound <> upper_was
       OR broker IS DISTINCT FROM broker_was
                          OR {_each("{m} <> {m}_was", _BUNDLE_FIGURES, " OR ")}) AS is_changed
  FROM judged
"""

_NAMESPACE_FIGURES = (
    *RATES, "topic_count", "bundle_count", "peak_msg_rate", "peak_byte_rate", "peak_topic_count",
)  # fmt: skip
_NAMESPACE_SUMS = f"""
WITH ordered AS (
  SELECT * FROM {{judged}} WHERE NOT gone DISTRIBUTE BY cluster, namespace SORT BY cluster, namespace, lower_bound
), summed AS (
  SELECT cluster, namespace, {_each("sum({m}) AS {m}", RATES)}, sum(topic_count) AS topic_count,
         count(*) AS bundle_count,
         max(msg_rate_in + msg_rate_out) AS peak_msg_rate, max(byte_rate_in + byte_rate_out) AS peak_byte_rate,
         max(topic_count) AS peak_topic_count, max(modified_at_ms) AS modified_at_ms
    FROM ordered GROUP BY cluster, namespace
)
SELECT cluster, namespace, {_each("f.{m}", RATES)}, f.topic_count, f.bundle_count, f.peak_msg_rate, f.peak_byte_rate,
       f.peak_topic_count, f.modified_at_ms, coalesce(s.row_version, 0) AS seen_row_version
  FROM summed f LEFT JOIN {{stored_namespaces}} s USING (cluster, namespace)
 WHERE s.row_version IS NULL
    OR {_each("f.{m} <> s.{m}", _NAMESPACE_FIGURES, " OR ")}
"""

_BROKERS = f"""
WITH ordered AS (
  SELECT * FROM {{judged}} WHERE NOT gone AND broker IS NOT NULL
  DISTRIBUTE BY cluster, broker SORT BY cluster, broker, namespace, lower_bound
), summed AS (
  SELECT cluster, broker, {_each("sum({m}) AS {m}", (*RATES, *COUNTS))}, count(*) AS bundle_count
    FROM ordered GROUP BY cluster, broker
), reported AS (
  SELECT b.* FROM {{brokers}} b JOIN {{reports}} r
      ON r.cluster = b.cluster AND r.broker = b.broker AND r.instant_ms = b.instant_ms
)
SELECT cluster, broker, {_each("b.{m}", _USAGES)}, {_each("coalesce(f.{m}, 0D) AS {m}", RATES)},
       {_each("coalesce(f.{m}, 0L) AS {m}", ("topic_count", "bundle_count", "producer_count", "consumer_count"))},
       b.report, b.version, b.instant_ms AS observed_at_ms, coalesce(s.row_version, 0) AS seen_row_version,
       false AS gone
  FROM reported b LEFT JOIN summed f USING (cluster, broker) LEFT JOIN {{stored_brokers}} s USING (cluster, broker)
 WHERE s.row_version IS NULL OR b.instant_ms > s.observed_at_ms
 UNION ALL
SELECT s.cluster, s.broker, {_each("s.{m}", _USAGES)}, {_each("s.{m}", RATES)}, s.topic_count, s.bundle_count,
       s.producer_count, s.consumer_count, s.report, s.version, s.observed_at_ms, s.row_version, true
  FROM {{stored_brokers}} s
  LEFT SEMI JOIN {{reports}} c ON c.cluster = s.cluster
  LEFT ANTI JOIN {{reports}} r ON r.cluster = s.cluster AND r.broker = s.broker
 WHERE s.observed_at_ms <= :gone_ms
"""

_BUSY = (
    "greatest("
    + _each(
        "CASE WHEN {m}_limit > 0 THEN {m}_usage / {m}_limit ELSE 0D END",
        ("cpu", "direct_memory", "bandwidth_in", "bandwidth_out"),
    )
    + ")"
)

_CLUSTERS = f"""
WITH present AS (  -- brokers that this run writes, and stored brokers without a report that are not gone
  SELECT cluster, broker, {_BUSY} AS usage, msg_rate_in + msg_rate_out AS msg_rate,
         byte_rate_in + byte_rate_out AS byte_rate
    FROM {{changed_brokers}} WHERE NOT gone
   UNION ALL
  SELECT s.cluster, s.broker, {_BUSY}, s.msg_rate_in + s.msg_rate_out, s.byte_rate_in + s.byte_rate_out
    FROM {{stored_brokers}} s
    LEFT SEMI JOIN {{reports}} c ON c.cluster = s.cluster
    LEFT ANTI JOIN {{changed_brokers}} b ON b.cluster = s.cluster AND b.broker = s.broker
), ordered AS (
  SELECT * FROM present DISTRIBUTE BY cluster SORT BY cluster, broker
), spread AS (
  SELECT cluster, count(*) AS broker_count,
         {_each("avg({m}) AS {m}_mean, stddev_pop({m}) AS {m}_stddev", ("usage", "msg_rate", "byte_rate"))}
    FROM ordered GROUP BY cluster
), carried AS (
  SELECT cluster, count(*) AS bundle_count, sum(topic_count) AS topic_count
    FROM {{judged}} WHERE NOT gone GROUP BY cluster
)
SELECT cluster, :end_ms AS window_end_ms, broker_count, coalesce(bundle_count, 0L) AS bundle_count,
       coalesce(topic_count, 0L) AS topic_count, {_each("{m}_mean, {m}_stddev", ("usage", "msg_rate", "byte_rate"))}
  FROM spread LEFT JOIN carried USING (cluster)
"""

_HOT_TOPICS = f"""
SELECT /*+ BROADCAST(h), BROADCAST(r) */ t.cluster, t.namespace, h.lower_bound, t.topic, crc32(t.topic) AS hash,
       t.broker,
       {_each("t.{m}", RATES)}, t.producer_count, t.consumer_count, t.instant_ms
  FROM {{topics}} t
  JOIN {{reports}} r ON r.cluster = t.cluster AND r.broker = t.broker AND r.instant_ms = t.instant_ms
  JOIN (SELECT j.cluster, j.namespace, j.lower_bound, j.upper_bound
          FROM {{judged}} j JOIN {{limits}} l ON l.cluster = j.cluster AND l.namespace = j.namespace
         WHERE NOT j.gone AND (j.topic_count > l.max_topics OR j.msg_rate_in + j.msg_rate_out > l.max_msg_rate
                               OR j.byte_rate_in + j.byte_rate_out > l.max_byte_rate
                               OR l.max_sessions > 0 AND j.producer_count + j.consumer_count > l.max_sessions)) h
    ON h.cluster = t.cluster AND h.namespace = t.namespace AND crc32(t.topic) >= h.lower_bound
   AND (crc32(t.topic) < h.upper_bound OR h.upper_bound = 4294967295)
"""


def build_judged(
    figures: DataFrame,
    reports: DataFrame,
    namespaces: DataFrame,
    *,
    stored_bundles: DataFrame,
    stored_brokers: DataFrame,
    window: ReportWindow,
) -> DataFrame:
    """Return every bundle, present or stored, of the clusters in `reports`, as the bundle is after the run. The
    columns are those of the store's BUNDLE_CHANGE_SCHEMA, and is_changed: true if the row differs from the stored row
    and is to be written. A bundle is identified by its cluster, namespace and lower_bound.

    `reports` has the counted reports (cluster, broker, instant_ms), `figures` is the result of `build`,
    and `namespaces` is the result of `build_namespaces`.

    gone is true for a stored bundle if no bundle in force begins at its lower_bound. A bundle keeps its stored
    figures, and is_changed is false, if no broker reported the bundle, its upper_bound is unchanged, and its stored
    owner has no report in `reports` but does not count as gone yet. modified_at_ms is the instant of the report from
    which the figures come, or the window's end without a report; for kept figures and a gone bundle it is the stored
    value. seen_row_version is the version of the stored row (0: never stored). seen_namespace_version is the version
    of the stored boundaries, or 0 if the boundaries are to be written.
    """
    tables = {"figures": figures, "reports": reports, "namespaces": namespaces}
    bounds = {"gone_ms": window.gone_ms, "end_ms": window.end_ms}
    stored = {"stored_bundles": stored_bundles, "stored_brokers": stored_brokers}
    return figures.sparkSession.sql(_JUDGED, bounds, **tables, **stored)


def build_namespace_sums(judged: DataFrame, stored_namespaces: DataFrame) -> DataFrame:
    """Return the namespaces to write, whose sums differ from the stored sums or were never stored: the sums of their bundles, the peaks
    over single bundles, and seen_row_version, the version of the stored row (0: never stored). `judged` is the result of `build_judged`;
    bundles that are gone do not count.
    """
    return judged.sparkSession.sql(_NAMESPACE_SUMS, judged=judged, stored_namespaces=stored_namespaces)


def build_brokers(
    judged: DataFrame, brokers: DataFrame, reports: DataFrame, stored_brokers: DataFrame, window: ReportWindow
) -> DataFrame:
    """Return the brokers to write: each broker with a report in `reports` that is later than the stored report, with the sums of its
    bundles, and, with `gone` true, each stored broker of a cluster in `reports` whose last report is too old. `brokers` are the landed
    rows of brokers. seen_row_version is the version of the stored row (0: never stored).
    """
    tables = {"judged": judged, "brokers": brokers, "reports": reports, "stored_brokers": stored_brokers}
    return judged.sparkSession.sql(_BROKERS, {"gone_ms": window.gone_ms}, **tables)


def build_clusters(
    judged: DataFrame,
    changed_brokers: DataFrame,
    reports: DataFrame,
    stored_brokers: DataFrame,
    window: ReportWindow,
) -> DataFrame:
    """Return a row for each cluster that reported: the numbers of brokers, bundles and topics, and mean and population standard deviation
    over the brokers of usage, message rate and byte rate. The usage of a broker is its largest usage of a limit as a share of the limit:
    of CPU, direct memory, incoming or outgoing bandwidth.

    `changed_brokers` is the result of `build_brokers`; brokers that are gone do not count. The other stored brokers of the clusters count
    with their stored values.
    """
    tables = {"judged": judged, "changed_brokers": changed_brokers, "reports": reports}
    bounds = {"end_ms": window.end_ms}
    return judged.sparkSession.sql(_CLUSTERS, bounds, **tables, stored_brokers=stored_brokers)


def build_hot_topics(
    judged: DataFrame, topics: DataFrame, reports: DataFrame, limits: DataFrame
) -> DataFrame:
    """Return the topics of the bundles above a limit of their namespace, from which the points of splits are computed: for each topic the
    first hash of its bundle (lower_bound), its own hash, its broker, rates, producers and consumers.

    `topics` are the sound landed rows, of which the rows of the reports in `reports` count. `limits`: cluster, namespace, max_topics,
    max_sessions (producers and consumers together; 0: none), max_msg_rate, max_byte_rate; the rates are in and out together. A topic in the
    reports of two brokers has a row for each.
    """
    return judged.sparkSession.sql(_HOT_TOPICS, judged=judged, topics=topics, reports=reports, limits=limits)
