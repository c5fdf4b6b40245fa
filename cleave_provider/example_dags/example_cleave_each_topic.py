"""Run once for each topic whose layout changed; the topic is the partition key of the run. Requires Airflow
3.3.

If a worker posts the events of `cleave_layout` (`CLEAVE_AIRFLOW_URL` is set), a DAG like
`example_cleave_each_topic` is sufficient. Otherwise, a DAG like `example_cleave_tell_topics` passes on the
changes that the triggerer received. Use only one of the two ways, because with both each change is reported
twice.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task

from cleave_provider.airflow_compatibility import AIRFLOW
from cleave_provider.assets.cleave import LAYOUT, changes_in, watched_layout

WATCHED = watched_layout("cleave_layout_watched")


@dag(schedule=[WATCHED], catchup=False, doc_md=__doc__, tags=["cleave", "example"])
def example_cleave_tell_topics() -> None:
    @task(outlets=[LAYOUT])
    def pass_on(triggering_asset_events: Any = None, outlet_events: Any = None) -> None:
        changes = changes_in(triggering_asset_events[WATCHED])
        outlet_events[LAYOUT].extra = {"changes": changes}
        outlet_events[LAYOUT].add_partitions(sorted({change["topic"] for change in changes}))

    pass_on()


def example_cleave_each_topic() -> None:
    @task
    def describe_changes(dag_run: Any = None, triggering_asset_events: Any = None) -> list[str]:
        changes = changes_in(triggering_asset_events[LAYOUT])
        return [
            f"{change['kind']} of {change['sealed']} into {change['created']}"
            for change in changes
            if change["topic"] == dag_run.partition_key
        ]

    describe_changes()


if AIRFLOW >= (3, 3):
    from airflow.sdk import PartitionedAssetTimetable

    example_cleave_tell_topics()
    dag(
        schedule=PartitionedAssetTimetable(assets=LAYOUT),
        catchup=False,
        doc_md=__doc__,
        tags=["cleave", "example"],
    )(example_cleave_each_topic)()
