"""Load aggregation: from landed counter samples to load records, one run a window.

`run` is the frame (baseline, files, merge, history); an *engine* computes: `spark`, or where there is no Java `twin`,
the same as SQL in PostgreSQL, which says so.
"""

from controller.services.load_aggregation.recovery import publish_left_over
from controller.services.load_aggregation.run import AggregationResult, Engine, aggregate, upcoming
from controller.services.load_aggregation.spark import SparkEngine
from controller.services.load_aggregation.twin import SqlTwinEngine

__all__ = [
    "AggregationResult",
    "Engine",
    "SparkEngine",
    "SqlTwinEngine",
    "aggregate",
    "publish_left_over",
    "upcoming",
]
