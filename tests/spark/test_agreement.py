"""Spark, the SQL twin and the domain's functions answer alike, to the last bit, on random histories."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from controller.landing.schemas import RATE_SCHEMA
from controller.store.load import twin as load_twin
from controller.store.load.records import Baseline
from controller.store.postgres.engine import Store
from spark_jobs.load_aggregation import build_changes, build_heard, build_rates
from tests.spark.oracle import tables
from tests.spark.random_cases import CASES, WINDOW, batch, check, expected
from tests.support.drawn import cases

seeds = given(seed=st.integers(0, 2**32))
quickly = settings(
    max_examples=cases(1, 6),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller seed is no smaller batch
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@seeds
@quickly
def test_spark_answers_as_the_domain_does(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    cases = batch(seed)
    given_tables = tables(cases)
    path = tmp_path_factory.mktemp("samples") / "samples.parquet"
    pq.write_table(given_tables.pop("samples"), path)
    samples = spark.read.parquet(str(path))
    before = {name: spark.createDataFrame(table) for name, table in given_tables.items()}
    rates, heard = build_rates(samples, WINDOW), build_heard(samples, WINDOW)

    changes = build_changes(rates, heard, window=WINDOW, **before)

    check(cases, rates.toArrow(), changes.toArrow(), heard.toArrow())


@seeds
@quickly
def test_the_twin_answers_as_the_domain_does(database: str, seed: int) -> None:
    cases = batch(seed)
    given_tables = tables(cases)
    samples = given_tables.pop("samples").select(load_twin.COLUMNS).to_batches()
    store = Store(database, pool_size=1)

    with store.transaction() as tx:
        rates, changes, heard = load_twin.aggregate(
            tx, samples, WINDOW, Baseline(None, **given_tables), RATE_SCHEMA
        )
    store.dispose()

    check(cases, rates, changes, heard)


def test_the_batches_hold_what_they_are_meant_to() -> None:
    """Writes, silences and stays: a generator that never writes would prove nothing."""
    cases = batch(0)
    rates, changes, _ = expected(cases)

    silenced = [n for n, change in changes.items() if change[6] is not None]

    assert len(rates) > CASES / 4
    assert len(silenced) > CASES / 100
    assert len([n for n in rates if n not in changes]) > CASES / 50
