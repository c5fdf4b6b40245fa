"""Split a segment by hand: in two at the midpoint, at cut points, or into equal parts.

Fill in the form and trigger the DAG. *Dry run* logs which segment would be sealed and which segments would
take over, and changes nothing. Cooldowns and caps of the policy do not apply to manual splits. A segment that
is already in an operation is refused.

A run stands for one request: a run that is cleared or retried in Airflow finds the operation of its first
attempt, and never splits again. The result (operation, epoch, children) is the XCom `return_value` of the
task.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_manual_split", "Cleave: split a segment", "segments split", __doc__)
