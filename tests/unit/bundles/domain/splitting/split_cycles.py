"""Short ways to make split cycles over sixteen bundles of one namespace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.ring import NamespaceBundle, NamespaceBundles
from controller.bundles.domain.splitting.algorithms.base import (
    CutRefusal,
    SplitOptions,
    SplitPlan,
    SplitRequest,
)
from controller.bundles.domain.splitting.policy import plan_split
from controller.bundles.domain.splitting.thresholds import BundleReport
from controller.bundles.domain.splitting.triggers import (
    TRIGGER_RULES,
    SplitInputs,
    SplitVerdict,
    TriggerSettings,
)

BUNDLES = NamespaceBundles.equal("t/n", 16).bundles
NOW_MS = 1_700_000_000_000
MODULAR = TriggerSettings(TRIGGER_RULES["modular"])
EXTENSIBLE = TriggerSettings(TRIGGER_RULES["extensible"])
AT_ONCE = TriggerSettings(replace(TRIGGER_RULES["extensible"], hit_count_threshold=0))
WARM = BundleStats(topic_count=2)
HOT = BundleStats(topic_count=2, msg_rate_in=40_000.0)


def in_halves(bundle: NamespaceBundle, budget: int) -> SplitPlan | CutRefusal:
    return plan_split("range_equally_divide", SplitRequest(bundle, (), SplitOptions(bundle_budget=budget)))


def hot(index: int, msg_rate: float = 40_000.0, **changes: Any) -> BundleReport:
    stats = replace(HOT, msg_rate_in=msg_rate)
    return replace(BundleReport(BUNDLES[index], stats, stats), **changes)


def cycle(*reports: BundleReport, **changes: Any) -> SplitInputs:
    return replace(SplitInputs(NOW_MS, reports, {"t/n": 16}, broker_count=2), **changes)


def chosen(verdict: SplitVerdict) -> list[NamespaceBundle]:
    return [split.bundle for split in verdict.chosen]


def refused(verdict: SplitVerdict) -> list[tuple[str, str, float, float]]:
    return [(refusal.reason, refusal.metric, refusal.value, refusal.needed) for refusal in verdict.refusals]
