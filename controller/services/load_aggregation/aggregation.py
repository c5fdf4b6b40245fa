"""The aggregation of one installation: selects login and engine, then performs one run."""

from __future__ import annotations

from collections.abc import Mapping

from controller.domain.load_window import LoadWindow
from controller.landing.area import LandingArea
from controller.landing.history import RateHistory
from controller.postgres.session_settings import BULK_STATEMENT_SECONDS
from controller.services.load_aggregation.engine import Engine
from controller.services.load_aggregation.run import AggregationResult, KeyCounts, aggregate
from controller.services.load_aggregation.spark_engine import SparkEngine
from controller.services.load_aggregation.sql_engine import SqlEngine
from controller.spark_requirements import can_run_spark
from controller.store.postgres.engine import Store


def aggregate_as_loader(
    loader_dsn: str,
    area: LandingArea,
    history: RateHistory,
    window: LoadWindow,
    *,
    run_id: str,
    key_counts: KeyCounts,
    spark_master: str,
    spark_conf: Mapping[str, str],
) -> AggregationResult:
    """Aggregate one window (`aggregate`) with a database connection of its own, at the address `loader_dsn`, which has
    the loader's login. Spark computes the rates if it can run with `spark_master` and `spark_conf`, otherwise PostgreSQL.

    Raises InvalidInput if the address of the database is not valid, and the errors of `aggregate`. A run may be repeated
    after an error.
    """
    store = Store(
        loader_dsn,
        application_name="cleave-load-aggregation",
        pool_size=1,
        statement_seconds=BULK_STATEMENT_SECONDS,
    )
    try:
        engine = choose_engine(spark_master, spark_conf, store)
        return aggregate(store, area, history, engine, window, run_id=run_id, key_counts=key_counts)
    finally:
        store.dispose()


def choose_engine(spark_master: str, spark_conf: Mapping[str, str], store: Store) -> Engine:
    """Return the Spark engine if Spark can run with this master, otherwise the SQL engine. `store` logs in as
    the loader; only the SQL engine uses it.
    """
    if can_run_spark(spark_master):
        return SparkEngine(spark_master, spark_conf)
    return SqlEngine(store)
