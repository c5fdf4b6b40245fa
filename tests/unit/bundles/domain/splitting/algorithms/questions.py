"""Short ways to ask an algorithm: topics by hash and rates, in a bundle of one namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import (
    MIB,
    BundleTopic,
    CutRefusal,
    SplitOptions,
    SplitPlan,
    SplitRequest,
)
from controller.bundles.domain.splitting.policy import plan_split

BUNDLE = NamespaceBundle("public/default", 0, 0x80000000)


def topic(at: int, msg_rate: float = 0.0, mib_rate: float = 0.0, name: str = "") -> BundleTopic:
    """A topic at a hash with its messages and MiB a second, half of each in and half out."""
    stats = BundleStats(msg_rate / 2, msg_rate / 2, mib_rate * MIB / 2, mib_rate * MIB / 2)
    return BundleTopic(name or f"persistent://public/default/at-{at:x}", at, stats)


def ask(
    algorithm: str,
    present: Sequence[BundleTopic],
    bundle: NamespaceBundle | tuple[int, int] = BUNDLE,
    **options: Any,
) -> SplitPlan | CutRefusal:
    if isinstance(bundle, tuple):
        bundle = NamespaceBundle("public/default", *bundle)
    return plan_split(algorithm, SplitRequest(bundle, present, SplitOptions(**options)))


def cuts(answer: SplitPlan | CutRefusal) -> tuple[int, ...]:
    assert isinstance(answer, SplitPlan), answer.sentence
    return answer.cuts


def refused(answer: SplitPlan | CutRefusal) -> tuple[str, str, float, float | None]:
    """Reason, metric, value and needed of a refusal."""
    assert isinstance(answer, CutRefusal), answer
    return answer.reason, answer.metric, answer.value, answer.needed


def undone(answer: SplitPlan | CutRefusal) -> list[tuple[str, str, float, float | None]]:
    assert isinstance(answer, SplitPlan), answer
    return [refused(left) for left in answer.left_undone]
