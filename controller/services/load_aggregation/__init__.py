"""Load aggregation: from landed counter samples to load records, one run a window.

`run` is the frame (baseline, files, merge, history); an *engine* computes. Spark's engine is `spark_jobs`, bound in
bootstrap; `twin` computes the same as SQL in PostgreSQL where there is no Java, and says so.
"""

from controller.services.load_aggregation.run import AggregationResult, Engine, aggregate, upcoming
from controller.services.load_aggregation.twin import SqlTwinEngine

__all__ = ["AggregationResult", "Engine", "SqlTwinEngine", "aggregate", "upcoming"]
