"""What the demo's topic is scaled by: thresholds that the day crosses both ways, and pauses that fit into minutes."""

from __future__ import annotations

POLICY = {
    "split_msg_rate_in": 600,
    "merge_msg_rate_in": 280,
    "split_cooldown_seconds": 5,
    "merge_cooldown_seconds": 10,
    "merge_window_seconds": 30,
    "split_vs_rebucket_min_msg_rate_in": 0,
    "max_segments": 12,
}
THRESHOLDS = ("split_msg_rate_in", "merge_msg_rate_in")


def policy_at(load_share: float) -> dict[str, int]:
    """The policy for this share of the day's rates: the thresholds fall with them, so the topic takes the
    same shapes.
    """
    return POLICY | {knob: round(POLICY[knob] * load_share) for knob in THRESHOLDS}
