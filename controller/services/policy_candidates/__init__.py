"""Candidates: policies that are proposed into shadow, compared on a topic's own past, and promoted where they
cost less.

A topic's past is evaluated by a backtest, which is another service. So the creator of this service passes the
backtest in (`Trials`).
"""

from controller.services.policy_candidates.candidacy import propose, withdraw
from controller.services.policy_candidates.promotion import (
    DAYS,
    DAYS_NEEDED,
    Promotion,
    Weighed,
    promote,
    weigh,
)
from controller.services.policy_candidates.trials import CANDIDATE, IN_FORCE, Trials, Variant
from controller.services.policy_candidates.tuning import TunedTopic, tune

__all__ = [
    "CANDIDATE",
    "DAYS",
    "DAYS_NEEDED",
    "IN_FORCE",
    "Promotion",
    "Trials",
    "TunedTopic",
    "Variant",
    "Weighed",
    "promote",
    "propose",
    "tune",
    "weigh",
    "withdraw",
]
