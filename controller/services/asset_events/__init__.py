"""Asset events: report each layout change to Airflow, so that users' DAGs can be scheduled by it.

`poster` follows the notifications of the database in a thread of its own; `airflow` calls Airflow's REST API.
Both are best effort: nothing waits for them, and events that cannot be posted are dropped. The table
`layout_change` has every change. `follower` serves processes that read the database themselves, such as
Airflow's triggerer.
"""

from controller.services.asset_events.airflow import AirflowLogin, AirflowRest
from controller.services.asset_events.follower import LayoutFollower
from controller.services.asset_events.poster import CHANNELS, AssetEventPoster, document

__all__ = [
    "CHANNELS",
    "AirflowLogin",
    "AirflowRest",
    "AssetEventPoster",
    "LayoutFollower",
    "document",
]
