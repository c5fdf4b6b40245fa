"""Asset events: tell Airflow of each layout change, so that people's DAGs can be scheduled by it.

`poster` follows the notifications of the database on a thread of its own, `airflow` speaks Airflow's REST API. Both are
best effort: nothing waits for them, what cannot be posted is dropped, and the truth stays in `layout_change`. `follower` is
for those who come to the database themselves, as Airflow's triggerer does.
"""

from controller.services.asset_events.airflow import LAYOUT_ASSET, AirflowAway, AirflowLogin, AirflowRest
from controller.services.asset_events.follower import LayoutFollower
from controller.services.asset_events.poster import CHANNELS, AssetEventPoster, document

__all__ = [
    "CHANNELS",
    "LAYOUT_ASSET",
    "AirflowAway",
    "AirflowLogin",
    "AirflowRest",
    "AssetEventPoster",
    "LayoutFollower",
    "document",
]
