"""Decide which neighbouring segments have been cold for long enough to merge, and start their merges.

Airflow runs the pass every `CLEAVE_MERGE_PASS_SECONDS` (300). The pass evaluates every topic whose result in the merge lane
may have changed. If no worker is running, the pass also runs the operations. Many topics are divided into a
few mapped shares; the rest waits for the next pass.

Actions for which a policy requires approval await a person; the DAG `cleave_approvals` presents them.
`inspect.decisions`, `inspect.why_not` and `cleave decisions` have the decisions and their reasons. *Dry run*
only logs the decisions.
"""

from __future__ import annotations

from cleave_dags import pass_dag, seconds_from

from controller import tasks

dag = pass_dag(
    "cleave_merge_pass",
    "Cleave: merge pass",
    tasks.merge_pass,
    __doc__,
    seconds=seconds_from("CLEAVE_MERGE_PASS_SECONDS", 300),
)
