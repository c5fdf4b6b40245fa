"""What the demo's topic is scaled by: thresholds that the day crosses both ways, and pauses that fit into minutes."""

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
    """The policy for this share of the day's rates: the thresholds fall with them, so the topic takes the
    same shapes.
    """
    return POLICY | {parameter: round(rate * load_share) for parameter, rate in THRESHOLDS.items()}
