"""Selects the engine that computes the load: Spark where it can run, else SQL in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping

from controller.services.load_aggregation.engine import Engine
from controller.services.load_aggregation.spark_engine import SparkEngine
from controller.services.load_aggregation.sql_engine import SqlEngine
from controller.spark_requirements import can_run_spark
from controller.store.postgres.engine import Store


def choose_engine(spark_master: str, spark_conf: Mapping[str, str], store: Store) -> Engine:
    """Return the Spark engine if Spark can run with this master, otherwise the SQL engine. `store` logs in as
    the loader; only the SQL engine uses it.
    """
    if can_run_spark(spark_master):
        return SparkEngine(spark_master, spark_conf)
    return SqlEngine(store)
