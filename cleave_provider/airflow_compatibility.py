"""Names of Airflow 3.3 that Cleave uses. Airflow 3.1 and 3.2 have some of them in other modules, or not at
all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import airflow
from airflow.sdk.exceptions import AirflowRuntimeError

AIRFLOW = tuple(int(part) for part in airflow.__version__.split(".")[:2])
"""Major and minor version of Airflow."""
HAS_RETRY_POLICIES = AIRFLOW >= (3, 3)
"""True if an error can decide whether and when its task is tried again. Before 3.3, a task has one delay for
all errors.
"""

if TYPE_CHECKING or AIRFLOW >= (3, 2):
    from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable, DeltaTriggerTimetable
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException
else:
    from airflow.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException
    from airflow.timetables.assets import AssetOrTimeSchedule
    from airflow.timetables.trigger import CronTriggerTimetable, DeltaTriggerTimetable

if TYPE_CHECKING or HAS_RETRY_POLICIES:
    from airflow.sdk import RetryDecision, RetryPolicy
else:
    RetryDecision = RetryPolicy = object

__all__ = [
    "AIRFLOW",
    "HAS_RETRY_POLICIES",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRuntimeError",
    "AssetOrTimeSchedule",
    "CronTriggerTimetable",
    "DeltaTriggerTimetable",
    "RetryDecision",
    "RetryPolicy",
]
