"""Set when and how the bundles of a Pulsar namespace are split.

*Parameters* is a JSON object: `{"max_topics": 500, "cooldown_seconds": 600}`; null resets a parameter to its
default. The result, in Airflow the XCom `return_value`, is the split policy in force. *Dry run* checks and
shows the policy, and changes nothing. Empty parameters change nothing either.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag(
    "bundle_policy", "Cleave: set the split policy of a namespace", "bundles set-policy", __doc__
)
