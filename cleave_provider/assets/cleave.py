"""Assets for DAGs that run after layout changes.

There are two, for two kinds of DAG:
- `LAYOUT` has a partition for each topic. A worker that has the address of Airflow posts its events
  (`controller.services.asset_events`). A DAG with a `PartitionedAssetTimetable` runs once for each topic.
- `watched_layout` creates an asset of your own with a watcher. The triggerer listens to Cleave's database, so
  no worker needs the address of Airflow. Airflow's watchers have no partitions: the event names the topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from airflow.sdk import Asset, AssetWatcher

LAYOUT = Asset(name="cleave_layout", uri="cleave://layout")


def watched_layout(
    name: str, *, topics: Sequence[str] = (), kinds: Sequence[str] = (), cleave_conn_id: str = "cleave"
) -> Asset:
    """Return an asset that gets an event after layout changes of these topics and kinds; empty sequences
    stand for all. `LayoutChangeTrigger` emits the events. Raises ValueError for topics or kinds that are no list
    of texts, and for a kind that layout changes do not have.
    """
    from cleave_provider.triggers.cleave import LayoutChangeTrigger

    trigger = LayoutChangeTrigger(topics, kinds, cleave_conn_id)
    return Asset(
        name=name, uri=f"cleave://watched/{name}", watchers=[AssetWatcher(name=name, trigger=trigger)]
    )


def changes_in(events: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the layout changes in events of `LAYOUT` or of an asset of `watched_layout`, in the order of the
    events. Each has topic, epoch, kind, operation_id, sealed, created, actor and reason.
    """
    changes: list[dict[str, Any]] = []
    for event in events:
        content = event.extra["payload"] if event.extra.get("from_trigger") else event.extra
        changes += content.get("changes", [content])
    return changes
