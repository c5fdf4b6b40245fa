"""The work of Airflow's tasks, one plain function each. DAGs call these functions, and they can also be
called without Airflow.

Every function takes the address of Cleave: `dsn`, and `extras` with settings by name and other options of the
connection. It returns a document of plain values. Errors are Cleave's own, or OSError of the storage. A
repeated call with the same `request_key` gets the operation of the first call. This package does not import
Airflow.
"""

from controller.tasks.actions import form_fields, perform
from controller.tasks.application_of_connection import database_url, url_with_options
from controller.tasks.approval_questions import answer_question, approval_questions
from controller.tasks.backtest import policy_backtest, tune_policies
from controller.tasks.bundles import (
    aggregate_bundles,
    apply_bundles,
    collect_bundles,
    keep_bundles,
    propose_bundles,
    verify_bundles,
)
from controller.tasks.connections import ask_pulsar, check_database, check_pulsar
from controller.tasks.ended_operation import ended_operation
from controller.tasks.layout_changes import LayoutChanges
from controller.tasks.load import aggregate_load, keep_landing
from controller.tasks.maintenance import (
    collect_garbage,
    fleet_shares,
    reconcile_share,
    sweep_deletion_entries,
)
from controller.tasks.passes import merge_pass, split_pass, split_pass_has_work
from controller.tasks.pulsar_connection import pulsar_settings
from controller.tasks.row_retention import keep_partitions
from controller.tasks.spark_connection import spark_settings

__all__ = [
    "LayoutChanges",
    "aggregate_bundles",
    "aggregate_load",
    "answer_question",
    "apply_bundles",
    "approval_questions",
    "ask_pulsar",
    "check_database",
    "check_pulsar",
    "collect_bundles",
    "collect_garbage",
    "database_url",
    "ended_operation",
    "fleet_shares",
    "form_fields",
    "keep_bundles",
    "keep_landing",
    "keep_partitions",
    "merge_pass",
    "perform",
    "policy_backtest",
    "propose_bundles",
    "pulsar_settings",
    "reconcile_share",
    "spark_settings",
    "split_pass",
    "split_pass_has_work",
    "sweep_deletion_entries",
    "tune_policies",
    "url_with_options",
    "verify_bundles",
]
