"""Search every night for policies that would have cost less, topic by topic, and propose confirmed ones into
shadow.

The first 70 % of each topic's past is searched: `reseal_price_segment_seconds`, `target_use` and
`overload_tolerance` of the profile `adaptive`, each alone and then the helpful values together, and `pip483`.
The best variant is simulated on the rest. Only a variant that costs at least 2 % less there becomes a
candidate in shadow, with that backtest as its evidence; the policy in force is not changed. Continue with
`cleave policy promote` or the DAG `policy_promote`.

The result has, for each topic, the number of variants and the reason if nothing was proposed. Tuning runs on
Spark if there is much to simulate. Without *topics*, all topics are tuned; *days* is the length of the past.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, cleave_task, request, scheduled

from cleave_provider.airflow_compatibility import CronTriggerTimetable
from controller import tasks

DAY_SECONDS = 86_400
TOPICS = Param(
    None,
    type=["null", "string"],
    title="Topics",
    description="Names, separated by commas, spaces or line breaks. Empty: all topics.",
)
DAYS = Param(
    14, type="integer", minimum=5, maximum=400, title="Days", description="Days of the past that are used."
)


@dag(
    dag_display_name="Cleave: look for better policies",
    schedule=CronTriggerTimetable("15 2 * * *", timezone="UTC"),
    is_paused_upon_creation=True,
    **{
        **scheduled(DAY_SECONDS, __doc__, topics=TOPICS, days=DAYS),
        "dagrun_timeout": timedelta(hours=20),
    },
)
def policy_tuning() -> None:
    @cleave_task(retries=1)
    def tune(params: dict[str, Any]) -> dict[str, Any]:
        return tasks.tune_policies(**access(loader=True), **request(), params=dict(params))

    tune()


policy_tuning()
