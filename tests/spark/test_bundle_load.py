"""Bundle load on Spark answers as plain Python does, on random clusters that stand at the limits of every rule."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from controller.bundles.broker_reports import REPORT_SCHEMAS
from controller.bundles.domain.ring import LAST_HASH, topic_hash
from controller.bundles.store.loads import BASELINE_SCHEMAS, CHANGE_SCHEMAS
from spark_jobs.bundle_figures import RATES, SIGNALS, ReportWindow, build, build_namespaces
from spark_jobs.run_bundle_load import BASELINE, REPORTS, compute
from tests.spark.bundle_oracle import LIMITS, Answer, Row, RunInputs
from tests.support.drawn import cases

WINDOW = ReportWindow(1_800_000_000_000, 180_000, 600_000)
END = WINDOW.end_ms
LIMIT_SCHEMA = pa.schema(
    [("cluster", pa.string()), ("namespace", pa.string()), *((name, pa.float64()) for name in LIMITS)]
)
KEYS = {
    "boundaries": ("cluster", "namespace"),
    "bundles": ("cluster", "namespace", "lower_bound"),
    "namespaces": ("cluster", "namespace"),
    "brokers": ("cluster", "broker"),
    "clusters": ("cluster",),
}


def run(
    spark: SparkSession, directory: Path, rows: RunInputs, window: ReportWindow = WINDOW
) -> dict[str, pa.Table]:
    """The job over files of these rows; a kind without rows has no file."""
    urls: dict[str, list[str]] = {}
    for kind, schema in REPORT_SCHEMAS.items():
        found = getattr(rows, kind)
        path = directory / f"{kind}.parquet"
        pq.write_table(pa.Table.from_pylist(found, schema), path)
        urls[kind] = [path.as_uri()] if found else []
    for name, schema in {**BASELINE_SCHEMAS, "limits": LIMIT_SCHEMA}.items():
        (directory / name).mkdir()
        pq.write_table(pa.Table.from_pylist(getattr(rows, name), schema), directory / name / "part-0.parquet")
    return compute(spark, urls, directory.as_uri(), window)


def check(found: dict[str, pa.Table], answer: Answer) -> None:
    """Every table, to the last bit; means and deviations to 12 digits."""
    for name, key in KEYS.items():
        table = found[name].select(
            CHANGE_SCHEMAS[name].names if name != "clusters" else found[name].column_names
        )
        rows = {}
        for row in table.to_pylist():
            where = tuple(row.pop(part) for part in key)
            rows[where if len(where) > 1 else where[0]] = row
        assert len(rows) == table.num_rows
        wanted = getattr(answer, name)
        if name == "clusters":
            wanted = {k: pytest.approx(v, rel=1e-12, abs=1e-12) for k, v in wanted.items()}
        assert rows == wanted, name
    topics = {
        (r["cluster"], r["namespace"], r["lower_bound"], r["topic"], r["hash"], r["broker"])
        for r in found["hot_topics"].to_pylist()
    }
    assert topics == answer.hot_topics


def _some(random: Random, names: list[str]) -> list[str]:
    return [name for name in names if random.random() < 0.7]


CLUSTERS = 40
"""In one batch: a try costs some Spark jobs, whatever it holds."""


class RandomClusters:
    """Clusters with few names, so that everything meets everything within each."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)
        self._namespaces = ["t/a", "t/b", "t/c"]
        self._names = {n: [f"persistent://{n}/é-{i}" for i in range(12)] for n in self._namespaces}
        self._lists = {n: [self._edges(n) for _ in range(2)] for n in self._namespaces}
        self.given = RunInputs()
        for cluster in (f"c{number}" for number in range(CLUSTERS)):
            for broker in _some(random, ["b1", "b2", "b3"]):
                for _ in range(random.choice([1, 1, 2])):
                    self._report(cluster, broker, self._instant())
            for namespace in _some(random, self._namespaces):
                self._land(cluster, namespace)
            self._store(cluster)

    def _instant(self) -> int:
        edges = [WINDOW.start_ms, WINDOW.start_ms + 1, END - 1, END, END + 1]
        return self._random.choice([*edges, END - 10_000, END - 20_000, END - 20_000])

    def _edges(self, namespace: str) -> list[int]:
        """Often at a topic's very hash, or one beside it."""
        hashes = [topic_hash(name) for name in self._names[namespace]]
        cuts = {self._random.choice(hashes) + self._random.choice([0, 0, 1, -1]) for _ in range(4)}
        return [0, *sorted(cuts | {1 << 31}), LAST_HASH]

    def _rates(self) -> dict[str, float]:
        return {rate: self._random.choice([0.0, 0.1, 1 / 3, 1e9, self._random.random()]) for rate in RATES}

    def _report(self, cluster: str, broker: str, instant_ms: int) -> None:
        random, where = self._random, {"cluster": cluster, "broker": broker, "instant_ms": instant_ms}
        if any(all(row[k] == v for k, v in where.items()) for row in self.given.brokers):
            return
        told = [(n, name) for n in self._namespaces for name in self._names[n] if random.random() < 0.3]
        for namespace, name in told:
            counts = {"producer_count": random.randint(0, 3), "consumer_count": random.randint(0, 3)}
            self.given.topics.append(where | {"namespace": namespace, "topic": name} | self._rates() | counts)
        for namespace in _some(random, self._namespaces):
            edges = random.choice(self._lists[namespace])
            at = random.randrange(len(edges) - 1)
            self.given.owned.append(
                where
                | {"namespace": namespace, "lower_bound": edges[at], "upper_bound": edges[at + 1]}
                | {"cache_size_bytes": random.randint(0, 9)}
            )
        lost = 0 if random.random() < 0.85 else 1
        self.given.brokers.append(where | self._system() | {"topic_count": len(told) + lost})

    def _system(self) -> dict[str, Any]:
        values = {
            f"{s}_{part}": self._random.choice([0.0, 10.0, 100.0])
            for s in SIGNALS
            for part in ("usage", "limit")
        }
        return values | {"bandwidth_in_limit": -1.0, "report": "load-report", "version": "4"}

    def _land(self, cluster: str, namespace: str) -> None:
        for instant_ms in {self._instant() for _ in range(2)}:
            edges = self._random.choice(self._lists[namespace])
            self.given.boundaries.append(
                {"cluster": cluster, "namespace": namespace, "instant_ms": instant_ms, "boundaries": edges}
            )

    def _store(self, cluster: str) -> None:
        random = self._random
        for broker in _some(random, ["b1", "b2", "b3", "b4"]):
            at = random.choice([END - 20_000, WINDOW.gone_ms, WINDOW.gone_ms + 1, 0])
            counts = dict.fromkeys(("topic_count", "bundle_count", "producer_count", "consumer_count"), 2)
            self.given.stored_brokers.append(
                {"cluster": cluster, "broker": broker, "observed_at_ms": at, "row_version": 3}
                | self._system()
                | self._rates()
                | counts
            )
        for namespace in _some(random, self._namespaces):
            key = {"cluster": cluster, "namespace": namespace}
            edges = random.choice(self._lists[namespace])
            at = random.choice([END - 10_000, END, 0])
            self.given.stored_boundaries.append(
                key | {"boundaries": edges, "boundaries_at_ms": at, "row_version": 5}
            )
            self._store_load(key, edges)
            limits = dict.fromkeys(LIMITS, random.choice([1.0, 2.0, 1e6]))
            self.given.limits.append(key | limits | {"max_sessions": random.choice([0.0, 4.0])})

    def _store_load(self, key: Row, edges: list[int]) -> None:
        random = self._random
        for lower, upper in pairwise(edges):
            if random.random() < 0.7:
                broker = random.choice(["b1", "b2", "b3", "b4", None])
                figures = self._rates() if random.random() < 0.5 else dict.fromkeys(RATES, 0.0)
                counts = dict.fromkeys(
                    ("topic_count", "producer_count", "consumer_count", "cache_size_bytes"), 0
                )
                self.given.stored_bundles.append(
                    key
                    | {"lower_bound": lower, "upper_bound": upper, "broker": broker}
                    | figures
                    | counts
                    | {"modified_at_ms": 7, "row_version": random.randint(1, 9)}
                )
        counts = {"topic_count": 0, "bundle_count": len(edges) - 1, "peak_topic_count": 0}
        peaks = {"peak_msg_rate": 0.0, "peak_byte_rate": 0.0}
        self.given.stored_namespaces.append(
            key | dict.fromkeys(RATES, 0.0) | counts | peaks | {"modified_at_ms": 7, "row_version": 2}
        )


@given(seed=st.integers(0, 2**32))
@settings(
    max_examples=cases(1, 4),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller seed is no smaller batch
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_spark_answers_as_plain_python_does(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rows = RandomClusters(seed).given

    check(run(spark, tmp_path_factory.mktemp("bundle-load"), rows), Answer(rows, WINDOW))


NAMED_END = 1_700_000_000_000


def test_the_last_hash_and_both_sides_of_a_boundary(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A topic at a boundary is right of it, one below is left of it; idle bundles are there, with 0."""
    names = sorted((f"persistent://t/n/{i}" for i in range(4)), key=topic_hash)
    edges = [0, topic_hash(names[1]), topic_hash(names[2]) + 1, LAST_HASH - 1, LAST_HASH]
    where = {"cluster": "c", "broker": "b", "instant_ms": NAMED_END}
    rates = dict.fromkeys(RATES, 1.5)
    counts = {"producer_count": 1, "consumer_count": 2}
    system = {f"{s}_{part}": 50.0 for s in SIGNALS for part in ("usage", "limit")}
    rows = RunInputs(
        topics=[where | {"namespace": "t/n", "topic": name} | rates | counts for name in names],
        boundaries=[{"cluster": "c", "namespace": "t/n", "instant_ms": NAMED_END, "boundaries": edges}],
        brokers=[where | system | {"topic_count": 4, "report": "metrics", "version": ""}],
    )

    found = run(spark, tmp_path_factory.mktemp("named"), rows, ReportWindow(NAMED_END))

    by_range = {
        r["lower_bound"]: (r["topic_count"], r["msg_rate_in"], r["broker"])
        for r in found["bundles"].to_pylist()
    }
    assert by_range == {
        edges[0]: (1, 1.5, "b"),
        edges[1]: (2, 3.0, "b"),
        edges[2]: (1, 1.5, "b"),
        edges[3]: (0, 0.0, None),
    }
    assert found["clusters"].to_pylist()[0]["usage_mean"] == 1.0


def test_topics_are_joined_by_one_sort_in_the_jvm(spark: SparkSession) -> None:
    """No row meets every boundary, no Python runs, and topics are shuffled once."""
    landed = {kind: spark.createDataFrame([], schema) for kind, schema in REPORTS.items()}
    stored = spark.createDataFrame([], BASELINE["stored_boundaries"])
    reports = spark.createDataFrame([("c", "b", 1)], "cluster STRING, broker STRING, instant_ms BIGINT")
    namespaces = build_namespaces(landed["boundaries"], reports, stored, WINDOW)

    figures = build(landed["topics"], landed["owned"], reports, namespaces)
    plan = figures._jdf.queryExecution().executedPlan().toString()

    assert "Python" not in plan
    assert "NestedLoop" not in plan
    assert "Cartesian" not in plan
    assert plan.count("Window [") == 1


def test_the_random_clusters_hold_what_they_are_meant_to() -> None:
    """A generator that never meets a rule would prove nothing."""
    answer = Answer(RandomClusters(0).given, WINDOW)
    bundles, brokers = list(answer.bundles.values()), list(answer.brokers.values())
    kept = len(answer.judged) - sum(not row["gone"] for row in bundles)

    assert any(row["gone"] for row in bundles)
    assert any(row["gone"] for row in brokers)
    assert any(row["broker"] is None and row["seen_row_version"] for row in bundles)
    assert sum(row["topic_count"] > 1 for row in bundles) > CLUSTERS / 4
    assert kept > CLUSTERS / 4
    assert len(answer.boundaries) > CLUSTERS / 4
    assert len(answer.hot_topics) > CLUSTERS
    assert len({cluster for cluster, _ in answer.reports}) < CLUSTERS
