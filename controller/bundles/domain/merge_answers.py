"""What a look for merges is asked and what it answers: a plan for a person, and why cold bundles stay apart.

Values only; ``merging`` makes the answer. Nothing of Cleave's carries such a plan out: Pulsar's admin API
cannot merge bundles, so the plan says what an operator would do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from controller.bundles.domain.namespace_bundle import NamespaceBundle
from controller.bundles.domain.namespace_bundles import NamespaceBundles
from controller.bundles.domain.split_thresholds import BundleReport
from controller.bundles.domain.stats import BundleStats


class ApartReason(StrEnum):
    """Why a bundle stays as it is. The comment says what ``value`` and ``needed`` hold."""

    # The bundle.
    NOT_REPORTED = "not-reported"  # reports; 1: silence is not cold
    ISOLATED = "isolated"  # upper - lower; the least of a bundle that was not cut around one topic
    # Time.
    COLD_CYCLES = "cold-cycles"  # consecutive cold cycles, this one included; cycles it takes
    COOL_DOWN = "cool-down"  # milliseconds since the last split of its range; milliseconds to wait
    IN_FLIGHT = "in-flight"  # splits of its range under way; 0
    # Neighbours.
    NO_COLD_NEIGHBOUR = "no-cold-neighbour"  # neighbours that could be merged with; 1
    ABOVE_LOW_WATER = "above-low-water"  # the figure of both together; the most it may be
    # Limits.
    AT_MIN_BUNDLES = "at-min-bundles"  # bundles after the merges planned; the least there may be


@dataclass(frozen=True, slots=True)
class MergeCycle:
    """One namespace, all that a look may see.

    ``reports``: of any of its bundles, those of bundles that are no more are ignored. A bundle nobody
    serves is reported by no broker: the caller reports it, empty, if it knows that. ``cold_cycles`` as the
    look before returned them. ``last_split_at_ms`` by the bundle that was split, milliseconds since the Unix
    epoch like ``now_ms``. ``in_flight``: bundles being split now.
    """

    now_ms: int
    bundles: NamespaceBundles
    reports: Sequence[BundleReport]
    cold_cycles: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    last_split_at_ms: Mapping[NamespaceBundle, int] = field(default_factory=dict)
    in_flight: Collection[NamespaceBundle] = ()


@dataclass(frozen=True, slots=True)
class BundleMerge:
    """Neighbours, rising, the bundle they would make, and what it would carry now and over a long time."""

    members: tuple[NamespaceBundle, ...]
    merged: NamespaceBundle
    latest: BundleStats
    long_term: BundleStats


@dataclass(frozen=True, slots=True)
class KeptApart:
    """A bundle that is not merged. What ``value`` and ``needed`` hold: see ``ApartReason``."""

    bundle: NamespaceBundle
    reason: ApartReason
    metric: str
    value: float
    needed: float


class MergeAct(StrEnum):
    """What an operator does, in this order."""

    RECORD = "record"
    STOP_CLIENTS = "stop-clients"
    DRAIN = "drain"
    DELETE = "delete"
    CREATE = "create"
    RESTORE = "restore"
    START_CLIENTS = "start-clients"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class MergeStep:
    """One step, with a sentence for the one who does it."""

    act: MergeAct
    sentence: str


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Merges on disjoint bundles, rising, and the namespace's list before and after them, at one version."""

    before: NamespaceBundles
    after: NamespaceBundles
    merges: tuple[BundleMerge, ...]
    steps: tuple[MergeStep, ...]


@dataclass(frozen=True, slots=True)
class MergeVerdict:
    """A plan, or None; a reason for every bundle that is cold or silent and stays; what the next look is given."""

    plan: MergePlan | None
    apart: tuple[KeptApart, ...]
    cold_cycles: Mapping[NamespaceBundle, int]
