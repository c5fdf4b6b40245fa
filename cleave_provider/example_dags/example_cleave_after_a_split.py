"""Runs when topics were split, whoever split them and why: here it says which segments took over.

Splits that come close to each other are told together. One of the last minute may be told again after the triggerer was
restarted: topic and epoch say which change it is.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task

from cleave_provider.assets.cleave import changes_in, watched_layout

SPLITS = watched_layout("cleave_splits", kinds=["split"])


@dag(schedule=[SPLITS], catchup=False, doc_md=__doc__, tags=["cleave", "example"])
def example_cleave_after_a_split() -> None:
    @task
    def tell(triggering_asset_events: Any = None) -> list[str]:
        return [
            f"{change['topic']}: {change['sealed']} became {change['created']}, {change['reason']}"
            for change in changes_in(triggering_asset_events[SPLITS])
        ]

    tell()


example_cleave_after_a_split()
