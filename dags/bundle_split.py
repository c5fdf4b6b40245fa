"""Split a Pulsar bundle by hand, where an algorithm, positions or topics say.

*Dry run* shows the parts and what each would carry. If you retry a run in Airflow, it finds the cuts that were made and changes
nothing.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("bundle_split", "Cleave: split a bundle", "bundles split", __doc__)
