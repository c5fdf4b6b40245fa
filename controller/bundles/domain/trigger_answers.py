"""What a split cycle is asked and what it answers: bundles to split, and why every other hot one is left alone.

Values only; ``triggers`` makes the answer. Hit counts and instants come in and go out, so that whoever runs the
cycle keeps them where it likes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from controller.bundles.domain.namespace_bundle import NamespaceBundle
from controller.bundles.domain.split_thresholds import BundleReport, Reading
from controller.bundles.domain.splitting.base import SplitPlan
from controller.bundles.domain.splitting.refusal import SplitRefusal


class HoldReason(StrEnum):
    """Why a hot bundle is left alone. The comment says what ``value`` and ``needed`` hold."""

    # The whole cycle.
    DISABLED = "disabled"  # 0; 1
    TOO_FEW_BROKERS = "too-few-brokers"  # brokers known; the least that makes a split worth while
    # The bundle.
    TOO_FEW_TOPICS = "too-few-topics"  # topics; 2
    NOT_OWNER = "not-owner"  # 0; 1
    NOT_SPLITTABLE = "not-splittable"  # upper - lower; the least that can be cut
    NO_CUT = "no-cut"  # the figures of the refusal in ``refusal``
    # Time.
    HIT_COUNT = "hit-count"  # consecutive hot cycles, this one included; cycles it takes
    COOL_DOWN = "cool-down"  # milliseconds since the last split of its range; milliseconds to wait
    IN_FLIGHT = "in-flight"  # splits of its range under way; 0
    # Limits.
    AT_MAX_BUNDLES = "at-max-bundles"  # bundles of the namespace with this cycle's splits; the cap
    CYCLE_LIMIT = "cycle-limit"  # splits chosen in this cycle; the most a cycle makes


@dataclass(frozen=True, slots=True)
class SplitCycle:
    """All that one cycle may look at.

    ``bundle_counts``: bundles of each namespace that is reported on. ``hit_counts`` and
    ``last_split_at_ms`` as the cycle before returned them; the latter by the bundle that was split,
    milliseconds since the Unix epoch like ``now_ms``. ``in_flight``: bundles being split now. The order of
    anything does not matter.
    """

    now_ms: int
    reports: Sequence[BundleReport]
    bundle_counts: Mapping[str, int]
    broker_count: int
    hit_counts: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    last_split_at_ms: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    in_flight: Collection[NamespaceBundle] = ()


@dataclass(frozen=True, slots=True)
class ChosenSplit:
    """A bundle to split, the first limit it is above (Pulsar's reason), and where to cut."""

    bundle: NamespaceBundle
    because: Reading
    plan: SplitPlan


@dataclass(frozen=True, slots=True)
class HeldSplit:
    """A hot bundle that is left alone. What ``value`` and ``needed`` hold: see ``HoldReason``."""

    bundle: NamespaceBundle
    because: Reading
    reason: HoldReason
    metric: str
    value: float
    needed: float
    refusal: SplitRefusal | None = None


@dataclass(frozen=True, slots=True)
class SplitVerdict:
    """Hottest first, and what the next cycle is to be given."""

    chosen: tuple[ChosenSplit, ...]
    held: tuple[HeldSplit, ...]
    hit_counts: Mapping[NamespaceBundle, int]
    last_split_at_ms: Mapping[NamespaceBundle, int]
