"""Load aggregation: from landed counter samples to load records, one run a window.

`aggregation` begins a run: it opens the loader's login, sets the window and has `engine_choice` pick the engine. `run`
is the frame (baseline, files, merge, history); `counted` says which counts of keys belong to it. An *engine* computes from what
has `landed`: `spark_engine`, or `sql_engine`, which computes the same rates in PostgreSQL; `record_changes` applies the rule of load records to them.
"""

from controller.services.load_aggregation.aggregation import LoadAggregation
from controller.services.load_aggregation.counted import KeyCountIntake
from controller.services.load_aggregation.landed import Landed
from controller.services.load_aggregation.recovery import publish_left_over
from controller.services.load_aggregation.run import AggregationResult, Engine, aggregate, upcoming
from controller.services.load_aggregation.spark_engine import SparkEngine
from controller.services.load_aggregation.sql_engine import SqlEngine

__all__ = [
    "AggregationResult",
    "Engine",
    "KeyCountIntake",
    "Landed",
    "LoadAggregation",
    "SparkEngine",
    "SqlEngine",
    "aggregate",
    "publish_left_over",
    "upcoming",
]
