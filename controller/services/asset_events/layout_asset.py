"""Names the Airflow asset of layout changes, and the longest partition key of its events.

`cleave_provider.assets.cleave` declares the same asset for DAGs.
"""

from __future__ import annotations

LAYOUT_ASSET = "cleave_layout"
"""Name of the asset, whose URI is `cleave://layout`. The asset is partitioned: the key is the topic's name.
"""
LONGEST_KEY = 250
"""Maximum number of characters of a partition key in Airflow. Changes of a topic with a longer name are not posted."""
