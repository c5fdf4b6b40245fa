"""Give a segment another number of entry buckets by hand (PIP-486): more consumers can share it, or fewer need to.

A segment's buckets never change; a successor with the same range takes over. Fill in the form and trigger. *Dry run* shows in the
log which segment would be sealed and which would take over, and changes nothing.

A run stands for one request: if you clear or retry it in Airflow, it finds the operation it started.
The result (operation, epoch, successor) is the XCom `return_value` of the task.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_manual_rebucket", "Cleave: rebucket a segment", "segments rebucket", __doc__)
