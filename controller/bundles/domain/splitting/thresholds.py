"""Thresholds of a hot bundle: strictly above any of Pulsar's four limits; and the bundle that a person means by `LARGEST` or `HOT`.

`triggers` selects by the thresholds the bundles to split. `merging` plans no bundle that would be split again. `splitting.algorithms`
chooses the cuts of a hot bundle.

`LARGEST` and `HOT` are the words of Pulsar's manual split. Both have the same meaning here under either load manager. Pulsar's extensible
manager treats `HOT` as `LARGEST`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from controller.bundles.domain.cluster import Bundle
from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.ring import NamespaceBundle
from controller.domain.errors import BundleNotFound, InvalidInput

MIN_TOPICS_TO_SPLIT = 2
"""Pulsar never splits a bundle with fewer. A single hot topic was once split again and again (PR 11937)."""


@dataclass(frozen=True, slots=True)
class SplitThresholds:
    """Limits of one bundle (`loadBalancerNamespaceBundleMax…`); rates in and out together, per second.

    `max_sessions` (producers and consumers) of 0 or below means no limit. Raises InvalidInput at construction
    unless all are finite and the others are >= 1.
    """

    max_topics: float = 1000
    max_sessions: float = 1000
    max_msg_rate: float = 30_000.0
    max_byte_rate: float = 100.0 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("max_topics", "max_msg_rate", "max_byte_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 1):
                raise InvalidInput(f"split threshold {name} = {value}; give a finite number >= 1")
        if not math.isfinite(self.max_sessions):
            raise InvalidInput(
                f"split threshold max_sessions = {self.max_sessions}; give a number, 0 for no limit"
            )

    def readings(self, counts: BundleStats, rates: BundleStats) -> Iterator[Reading]:
        """Yield one reading for each limit, in the order in which Pulsar tests them: topics, sessions (if they have a limit), messages,
        bytes. Topics and sessions are those of `counts`, messages and bytes those of `rates`.
        """
        yield Reading("topics", counts.topic_count, self.max_topics)
        if self.max_sessions > 0:
            yield Reading("sessions", counts.session_count, self.max_sessions)
        yield Reading("msg_rate", rates.msg_rate, self.max_msg_rate)
        yield Reading("byte_rate", rates.byte_rate, self.max_byte_rate)


@dataclass(frozen=True, slots=True)
class Reading:
    """Value of a bundle and its limit. `metric`: topics, sessions, msg_rate or byte_rate."""

    metric: str
    value: float
    limit: float

    @property
    def is_hot(self) -> bool:
        return self.value > self.limit

    @property
    def share(self) -> float:
        """The value as a share of the limit; hot above 1.0."""
        return self.value / self.limit


@dataclass(frozen=True, slots=True)
class BundleReport:
    """A bundle as its owner reports it now, and averaged over a long time (zeros where nothing is known).

    `owned`: the broker that reported it still owns it. `is_new`: the report counts as a hot cycle, because no
    earlier cycle has counted it.
    """

    bundle: NamespaceBundle
    latest: BundleStats
    long_term: BundleStats = field(default_factory=BundleStats)
    owned: bool = True
    is_new: bool = True


def report_of(bundle: Bundle) -> BundleReport:
    """Return the report of a bundle for the split and merge rules. Figures that are unknown are 0. The long-term figures have rates only.
    `owned` and `is_new` are True.
    """
    stats = bundle.stats or BundleStats()
    if bundle.load is None:
        return BundleReport(NamespaceBundle.parse(bundle.bundle_id), stats)
    long = bundle.load.long_term
    rates = BundleStats(long.msg_rate_in, long.msg_rate_out, long.byte_rate_in, long.byte_rate_out)
    return BundleReport(NamespaceBundle.parse(bundle.bundle_id), stats, rates)


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
