"""Decide which topics split, and start their splits.

Airflow runs the pass after load was written (asset `cleave_load`, updated by `cleave_load_aggregation`), and at least every
`CLEAVE_SPLIT_PASS_SECONDS` (300). The pass evaluates every topic whose result in the load lane may have
changed. If no worker is running, the pass also evaluates the consumer lane and runs the operations. Many
topics are divided into a few mapped shares; the rest waits for the next pass.

Actions for which a policy requires approval await a person; the DAG `cleave_approvals` presents them.
`inspect.decisions`, `inspect.why_not` and `cleave decisions` have the decisions and their reasons. *Dry run*
only logs the decisions.
"""

from __future__ import annotations

from cleave_dags import FRESH_LOAD, pass_dag, seconds_from

from controller import tasks

dag = pass_dag(
    "cleave_split_pass",
    "Cleave: split pass",
    tasks.split_pass,
    __doc__,
    seconds=seconds_from("CLEAVE_SPLIT_PASS_SECONDS", 300),
    assets=FRESH_LOAD,
)
