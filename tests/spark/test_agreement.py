"""Spark and PostgreSQL compute the rates that the domain's rule gives, to the last bit, on random histories."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from controller.landing.schemas import RATE_SCHEMA
from controller.store.load import sql_rates
from controller.store.postgres.engine import Store
from spark_jobs.load_aggregation import build_heard, build_rates
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
    path = tmp_path_factory.mktemp("samples") / "samples.parquet"
    pq.write_table(tables(cases)["samples"], path)
    samples = spark.read.parquet(str(path))

    rates, heard = build_rates(samples, WINDOW), build_heard(samples, WINDOW)

    check(cases, rates.toArrow(), heard.toArrow())


@seeds
@quickly
def test_postgresql_answers_as_the_domain_does(database: str, seed: int) -> None:
    cases = batch(seed)
    samples = tables(cases)["samples"].select(sql_rates.COLUMNS).to_batches()
    store = Store(database, pool_size=1)

    with store.transaction() as tx:
        rates, heard = sql_rates.aggregate(tx, samples, WINDOW, RATE_SCHEMA)
    store.dispose()

    check(cases, rates, heard)


def test_the_batches_hold_what_they_are_meant_to() -> None:
    """A generator that never gives a rate would prove nothing."""
    rates, heard = expected(batch(0))

    assert len(rates) > CASES / 4
    assert len([rate for rate in rates.values() if rate[0] is None]) > CASES / 100
    assert len(heard) > CASES / 4
