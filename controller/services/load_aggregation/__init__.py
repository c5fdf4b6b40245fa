"""Load aggregation: computes load records from landed counter samples, one run per window.

`aggregation` begins a run: it opens the loader's login and selects the engine. `run` performs the steps of the run
(baseline, files, merge, history); if an engine fails, it leaves out the broken files and has the engine compute once
more, and it publishes the rates of interrupted runs. `key_counts_of_run` selects the key counts of the run. An `engine`
computes rates from landed files: `spark_engine`, or `sql_engine`, which computes the same rates in PostgreSQL.
`record_changes` applies the rule of load records (`domain.load_record_rule`) to the rates.
"""

from controller.services.load_aggregation.aggregation import aggregate_as_loader
from controller.services.load_aggregation.engine import Engine, Landed
from controller.services.load_aggregation.key_counts_of_run import counts_since_last_run
from controller.services.load_aggregation.run import (
    AggregationResult,
    aggregate,
    publish_left_over,
    upcoming,
)
from controller.services.load_aggregation.spark_engine import SparkEngine
from controller.services.load_aggregation.sql_engine import SqlEngine

__all__ = [
    "AggregationResult",
    "Engine",
    "Landed",
    "SparkEngine",
    "SqlEngine",
    "aggregate",
    "aggregate_as_loader",
    "counts_since_last_run",
    "publish_left_over",
    "upcoming",
]
