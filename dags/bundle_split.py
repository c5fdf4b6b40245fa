"""Split a Pulsar bundle by hand, at points that an algorithm, positions or topics determine.

*Dry run* shows the parts and the load of each. A run that is retried in Airflow finds the cuts that were
made, and changes nothing.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("bundle_split", "Cleave: split a bundle", "bundles split", __doc__)
