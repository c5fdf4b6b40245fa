"""Selects the bundle of a namespace that a person means by `LARGEST` or `HOT`, the words of Pulsar's manual split.

Both words have the same meaning here under either load manager. Pulsar's extensible manager treats `HOT` as `LARGEST`.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.splitting.thresholds import BundleReport
from controller.domain.errors import BundleNotFound, InvalidInput

BUNDLE_CHOICES = ("LARGEST", "HOT")


def chosen_bundle(choice: str, reports: Iterable[BundleReport]) -> NamespaceBundle:
    """Return the bundle with the most topics (`choice` LARGEST), or with the highest long-term byte rate (HOT). Of
    equal bundles, return the first by name. `reports` are those of one namespace. Bundles without topics are never
    chosen. Raises InvalidInput for another choice, and BundleNotFound if no bundle has topics.
    """
    if choice not in BUNDLE_CHOICES:
        raise InvalidInput(f"bundle choice {choice!r} is unknown; choose one of {', '.join(BUNDLE_CHOICES)}")
    filled = [report for report in reports if report.latest.topic_count > 0]
    if not filled:
        raise BundleNotFound(f"no bundle with topics is reported, so none is {choice}; name the bundle")

    def rank(report: BundleReport) -> tuple[float, str]:
        size = report.latest.topic_count if choice == "LARGEST" else report.long_term.byte_rate
        return -size, str(report.bundle)

    return min(filled, key=rank).bundle
