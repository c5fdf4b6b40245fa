"""Changes that a run of bundle load writes: figures that differ from the stored ones, and the sums over namespaces,
brokers and clusters.

A bundle whose owner reported nothing in the window keeps its stored figures, until the broker counts as gone: a
missing report does not mean a load of 0. Only differences are written, each row with the version from which it was
computed. `bundle_figures` computes the figures.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark_jobs.bundle_figures import COUNTS, RATES, SIGNALS, ReportWindow

_USAGES = tuple(f"{signal}_{part}" for signal in SIGNALS for part in ("usage", "limit"))
_FIGURES = (*RATES, *COUNTS, "cache_size_bytes")


def _each(template: str, names: tuple[str, ...], separator: str = ", ") -> str:
    """Return SQL text: `template` with each of the names in place of `{m}`, joined by `separator`."""
    return separator.join(template.format(m=name) for name in names)


_JUDGED = f"""
WITH clusters AS (
  SELECT DISTINCT cluster FROM {{reports}}
), silent AS (
  SELECT b.cluster AS silent_cluster, b.broker AS silent_broker
    FROM {{stored_brokers}} b LEFT ANTI JOIN {{reports}} r ON r.cluster = b.cluster AND r.broker = b.broker
   WHERE b.observed_at_ms > :gone_ms
), judged AS (
  SELECT cluster, namespace, lower_bound, f.upper_bound, f.broker, {_each("f.{m}", _FIGURES)}, f.observed_at_ms,
         s.upper_bound AS upper_was, s.broker AS broker_was, {_each("s.{m} AS {m}_was", _FIGURES)}, s.modified_at_ms,
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
       {_each("if(is_there AND NOT is_silent, {m}, {m}_was) AS {m}", _FIGURES)},
       if(is_there AND NOT is_silent, coalesce(observed_at_ms, :end_ms), modified_at_ms) AS modified_at_ms,
       seen_row_version, if(is_recut, 0L, row_version) AS seen_namespace_version, NOT is_there AS gone,
       NOT is_silent AND (NOT is_there OR seen_row_version = 0 OR upper_bound <> upper_was
       OR broker IS DISTINCT FROM broker_was
                          OR {_each("{m} <> {m}_was", _FIGURES, " OR ")}) AS is_changed
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

    `reports` has the counted reports (cluster, broker, instant_ms), `figures` is the result of `bundle_figures.build`,
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
