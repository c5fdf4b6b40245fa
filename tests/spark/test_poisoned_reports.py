"""Reports of brokers that nobody can compute with, among healthy ones: they are left out and said, and the others are served."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import make_url

from controller.bundles.broker_reports import REPORT_SCHEMAS, ReportArea
from controller.bundles.domain.ring import LAST_HASH
from controller.bundles.services.aggregation import aggregate
from controller.store.postgres.engine import Store
from spark_jobs.bundle_figures import RATES, SIGNALS, ReportWindow
from tests.support.bench import Bench

END = 1_800_000_000_000
HUGE = 2**63 - 1
HEALTHY = {"cluster": "c", "broker": "healthy", "instant_ms": END}
ODD = {**HEALTHY, "broker": "odd"}


def topic(where: dict[str, Any], **figures: Any) -> dict[str, Any]:
    usual = {**dict.fromkeys(RATES, 5.0), "producer_count": 1, "consumer_count": 1}
    return {
        **where,
        "namespace": "acme/shop",
        "topic": f"persistent://acme/shop/{where['broker']}",
        **usual,
        **figures,
    }


def broker(where: dict[str, Any], **figures: Any) -> dict[str, Any]:
    usages = {f"{name}_{part}": 1.0 for name in SIGNALS for part in ("usage", "limit")}
    return {**where, **usages, "topic_count": 1, "report": "metrics", "version": "5.0", **figures}


def boundaries(
    namespace: str = "acme/shop", edges: tuple[int | None, ...] = (0, LAST_HASH)
) -> dict[str, Any]:
    return {"cluster": "c", "namespace": namespace, "instant_ms": END, "boundaries": list(edges)}


@pytest.fixture
def loader(spark: SparkSession, database: str) -> Iterator[Store]:
    bench, login = Bench(database), f"loader_{secrets.token_hex(4)}"
    bench.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x' IN ROLE cleave_spark_loader")
    store = Store(make_url(database).set(username=login, password="x"))
    yield store
    store.dispose()
    bench.execute(f"DROP ROLE {login}")
    bench.close()


POISON: dict[str, tuple[str, dict[str, list[dict[str, Any]]]]] = {
    "rates without end": (
        "broker odd",
        {"topics": [topic(ODD, byte_rate_in=1.7e308), topic(ODD, byte_rate_in=float("inf"))]},
    ),
    "no number": ("broker odd", {"topics": [topic(ODD, msg_rate_in=float("nan"))]}),
    "counts above 2^63": (
        "broker odd",
        {"topics": [topic(ODD, producer_count=HUGE), topic(ODD, topic="b", producer_count=HUGE)]},
    ),
    "a rate without a value": ("broker odd", {"topics": [topic(ODD, msg_rate_in=None)]}),
    "below 0": ("broker odd", {"topics": [topic(ODD, msg_rate_out=-1.0)]}),
    "a version with a zero": ("broker odd", {"brokers": [broker(ODD, version="5\0", topic_count=0)]}),
    "a usage without end": ("broker odd", {"brokers": [broker(ODD, cpu_usage=float("inf"), topic_count=0)]}),
    "no boundary": ("namespace acme/odd", {"boundaries": [boundaries("acme/odd", ())]}),
    "boundaries with a gap": ("namespace acme/odd", {"boundaries": [boundaries("acme/odd", (5, None, 3))]}),
    "no namespace": ("namespace odd", {"boundaries": [boundaries("odd")]}),
}


@pytest.mark.parametrize("name", POISON)
def test_the_healthy_are_served_and_the_poisoned_is_said(
    loader: Store, database: str, tmp_path: Path, name: str
) -> None:
    subject, poison = POISON[name]
    rows: dict[str, list[dict[str, Any]]] = {
        "topics": [topic(HEALTHY)],
        "owned": [],
        "boundaries": [boundaries()],
        "brokers": [broker(HEALTHY)],
    }
    if "topics" in poison:
        rows["brokers"].append(broker(ODD, topic_count=len(poison["topics"])))
    for kind, more in poison.items():
        rows[kind] += more
    area = ReportArea(str(tmp_path))
    area.append(
        END, "c", {kind: pa.Table.from_pylist(rows[kind], schema) for kind, schema in REPORT_SCHEMAS.items()}
    )

    result = aggregate(loader, area, "local[2]", ReportWindow(END), run_id="run")

    bench = Bench(database)
    brokers = bench.rows("SELECT broker, msg_rate_in FROM cleave.broker_load")
    said = bench.rows("SELECT batch, subject FROM inspect.set_aside")
    bench.close()
    assert result.applied
    assert [tuple(row) for row in brokers] == [("healthy", 5.0)]
    assert [tuple(row) for row in said] == [("bundle load", f"{subject} of cluster c")]
