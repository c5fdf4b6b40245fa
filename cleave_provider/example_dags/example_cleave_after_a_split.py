"""Run after splits of any origin, and return which segments took over.

Splits that follow each other closely are reported together. After a restart of the triggerer, splits of the
last minute may be reported again: topic and epoch identify a change.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task

from cleave_provider.assets.cleave import changes_in, watched_layout

SPLITS = watched_layout("cleave_splits", kinds=["split"])


@dag(schedule=[SPLITS], catchup=False, doc_md=__doc__, tags=["cleave", "example"])
def example_cleave_after_a_split() -> None:
    @task
    def describe_splits(triggering_asset_events: Any = None) -> list[str]:
        return [
            f"{change['topic']}: {change['sealed']} became {change['created']}, {change['reason']}"
            for change in changes_in(triggering_asset_events[SPLITS])
        ]

    describe_splits()


example_cleave_after_a_split()
