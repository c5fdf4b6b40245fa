"""Look every night for policies that would have cost less, topic by topic, and put what holds into shadow.

The first 70 % of each topic's past is searched: `reseal_price_segment_seconds`, `target_use` and `overload_tolerance` of the profile
`adaptive`, each by itself and then what helped together, and `pip483`. The best is asked again on the rest. Only what costs at least 2 %
less there becomes a candidate in shadow, with that backtest as its evidence; nothing in force is changed. `cleave policy promote`
or the DAG `policy_promote` goes on from there.

The result says for each topic what was looked at, and why nothing was proposed. It runs on Spark where there is much to do. *No topics*
means all of them, *days* is how far it looks back.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag
from cleave_dags import access, cleave_task, request, scheduled

from cleave_provider.versions import CronTriggerTimetable
from controller import tasks

DAY_SECONDS = 86_400
TOPICS = Param(
    None,
    type=["null", "string"],
    title="Topics",
    description="Names with commas, spaces or lines between them. Empty: all.",
)
DAYS = Param(14, type="integer", minimum=5, maximum=400, title="Days", description="How far it looks back.")


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
