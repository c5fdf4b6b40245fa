"""Approve or refuse what the DAG `bundle_balance` proposed; its next run carries out what is approved."""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("bundle_approve", "Cleave: approve bundle proposals", "bundles approve", __doc__)
