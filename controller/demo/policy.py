"""The policy of the demo's topic: thresholds that the load crosses in both directions, and waiting times that fit into
minutes.
"""

from __future__ import annotations

POLICY: dict[str, int | float | str] = {
    "profile": "adaptive",
    "load_memory_seconds": 45,
    "reseal_price_segment_seconds": 20,
    "split_vs_rebucket_min_msg_rate_in": 0,
    "max_segments": 12,
}
THRESHOLDS = {"split_msg_rate_in": 600, "merge_msg_rate_in": 280}


def policy_at(load_share: float) -> dict[str, int | float | str]:
    """Return the policy for this share of the day's rates. The thresholds are scaled as the rates are, so the topic gets
    the same layouts.
    """
    return POLICY | {parameter: round(rate * load_share) for parameter, rate in THRESHOLDS.items()}
