"""Load aggregation: from landed counter samples to load records, one run a window.

`run` is the frame (baseline, files, merge, history); an *engine* computes. Spark's engine is `spark_jobs`, bound in
bootstrap; `plain` computes the same by the domain's own functions where there is no Java, and says so.
"""

from controller.services.load_aggregation.plain import PlainEngine
from controller.services.load_aggregation.run import AggregationResult, Engine, aggregate, upcoming

__all__ = ["AggregationResult", "Engine", "PlainEngine", "aggregate", "upcoming"]
