"""Unload a Pulsar bundle from its owner by hand, to a named broker or to any broker.

*Dry run* shows the owner of the bundle. A run that is retried in Airflow does not move a bundle that is
already at its destination.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("bundle_unload", "Cleave: unload a bundle", "bundles unload", __doc__)
