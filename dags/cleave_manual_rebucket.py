"""Give a segment another number of entry buckets by hand (PIP-486), so that more or fewer consumers share it.

The buckets of a segment never change; a successor with the same range takes over. Fill in the form and
trigger the DAG. *Dry run* logs which segment would be sealed and which would take over, and changes nothing.

A run stands for one request: a run that is cleared or retried in Airflow finds the operation of its first
attempt. The result (operation, epoch, successor) is the XCom `return_value` of the task.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_manual_rebucket", "Cleave: rebucket a segment", "segments rebucket", __doc__)
