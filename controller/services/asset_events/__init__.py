"""Asset events: tell Airflow of each layout change, so that people's DAGs can be scheduled by it.

`poster` follows the notifications of the database on a thread of its own, `airflow` speaks Airflow's REST API. All of
it is best effort: nothing waits for it, what cannot be posted is dropped, and the truth stays in `layout_change`.
"""

from controller.services.asset_events.airflow import LAYOUT_ASSET, AirflowAway, AirflowLogin, AirflowRest
from controller.services.asset_events.poster import CHANNELS, AssetEventPoster

__all__ = ["CHANNELS", "LAYOUT_ASSET", "AirflowAway", "AirflowLogin", "AirflowRest", "AssetEventPoster"]
