"""Which engine computes the load: Spark where it can run, else its SQL twin in PostgreSQL."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from controller.services.load_aggregation.run import Engine
from controller.services.load_aggregation.spark import SparkEngine
from controller.services.load_aggregation.twin import SqlTwinEngine
from controller.store.postgres.engine import Store
from controller.system_java import system_java_home

NO_SPARK = "none"
"""The setting of the Spark master that asks for the SQL twin."""


def choose_engine(spark_master: str, spark_conf: Mapping[str, str], store: Store) -> Engine:
    """The engine for this master. `store` logs in as the loader; only the SQL twin uses it."""
    if can_run_spark(spark_master):
        return SparkEngine(spark_master, spark_conf)
    return SqlTwinEngine(store)


def can_run_spark(master: str) -> bool:
    """Whether PySpark is installed and there is a Java for it.

    A Spark Connect server (`sc://`) has its own Java. Every other master needs one on this machine.
    """
    if master == NO_SPARK or importlib.util.find_spec("pyspark") is None:
        return False
    return master.startswith("sc://") or system_java_home() is not None
