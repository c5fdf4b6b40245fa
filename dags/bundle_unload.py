"""Take a Pulsar bundle from its owner by hand, towards a broker if one is named.

*Dry run* shows who owns the bundle. If you retry a run in Airflow, a bundle at its destination stays there.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("bundle_unload", "Cleave: unload a bundle", "bundles unload", __doc__)
