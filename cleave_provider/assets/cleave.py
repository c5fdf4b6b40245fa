"""Assets for DAGs that are to run when a layout has changed.

There are two, for two kinds of DAG:

- `LAYOUT` has a partition for each topic. A worker that is told where Airflow is posts its events
  (`controller.services.asset_events`), and a DAG with a `PartitionedAssetTimetable` runs once for each topic.
- `watched_layout` makes an asset of your own with a watcher. The triggerer listens to Cleave's database, so that no worker
  needs to know Airflow. Airflow's watchers know no partitions: the topics are in the event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from airflow.sdk import Asset, AssetWatcher

LAYOUT = Asset(name="cleave_layout", uri="cleave://layout")


def watched_layout(
    name: str, *, topics: Sequence[str] = (), kinds: Sequence[str] = (), cleave_conn_id: str = "cleave"
) -> Asset:
    """An asset with an event when layouts of those topics have changed in those ways; none given: all. See `LayoutChangeTrigger`."""
    from cleave_provider.triggers.cleave import LayoutChangeTrigger

    trigger = LayoutChangeTrigger(topics, kinds, cleave_conn_id)
    return Asset(
        name=name, uri=f"cleave://watched/{name}", watchers=[AssetWatcher(name=name, trigger=trigger)]
    )


def changes_in(events: Iterable[Any]) -> list[dict[str, Any]]:
    """The changes that events of either asset tell of: topic, epoch, kind, operation_id, sealed, created, and who and why."""
    found: list[dict[str, Any]] = []
    for event in events:
        told = event.extra["payload"] if event.extra.get("from_trigger") else event.extra
        found += told.get("changes", [told])
    return found
