"""Request and answer of a split algorithm: cut points with the load of each part, or a refusal.

One record of options serves every algorithm. In Pulsar the class of the options follows from the *configured*
algorithm, and selecting another one by name fails in a cast. `registry` runs the algorithm and checks what all
algorithms have in common. `ring.boundaries` applies the answer.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Self

from controller.bundles.domain.load.stats import BundleStats
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.ring.hashes import LAST_HASH, topic_hash
from controller.bundles.domain.splitting.algorithms.refusal import CutRefusal
from controller.domain.errors import InvalidInput, InvariantViolated
from controller.domain.pulsar_names import canonical_topic_name

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BundleTopic:
    """One topic with its hash and load. Each partition is a topic; idle ones have empty stats.

    Raises InvalidInput unless the hash is on the ring and the two sums of the rates in and out are finite and >= 0.
    """

    name: str
    hash_value: int
    stats: BundleStats = field(default_factory=BundleStats)

    def __post_init__(self) -> None:
        if not 0 <= self.hash_value <= LAST_HASH:
            raise InvalidInput(
                f"topic {self.name} has hash {self.hash_value}; give one from 0 to {LAST_HASH}"
            )
        for rate in (self.stats.msg_rate, self.stats.byte_rate):
            if not (math.isfinite(rate) and rate >= 0):
                raise InvalidInput(f"topic {self.name} has a rate of {rate}, not finite and >= 0; drop it")

    @classmethod
    def of(cls, name: str, stats: BundleStats | None = None) -> Self:
        """Create the topic of that name (short forms are completed), at its own hash. Raises InvalidInput for a text that is no topic
        name.
        """
        complete = canonical_topic_name(name)
        return cls(complete, topic_hash(complete), stats or BundleStats())


class Midpoint(StrEnum):
    """Pulsar's two rules for a cut between neighbours a < b. They differ by one hash."""

    LOWER = "lower"  # a + (b - a) // 2, of topic_count_equally_divide and the documentation
    UPPER = "upper"  # one more, of flow_or_qps_equally_divide


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """The parameters of every algorithm. The defaults are Pulsar's where Pulsar has the parameter.

    - `max_msg_rate` (messages/s, in and out) and `max_byte_rate` (bytes/s, in and out): the intended maximum of one bundle, above 0.
    - `difference_percent`: percentage by which a bundle must exceed them before flow_or_qps_equally_divide cuts, at least 0.
    - `midpoint`: None for each algorithm's own.
    - `positions`: cut points of specified_positions_divide; `force` takes them with fewer than two topics too.
    - `parts`: number of parts of range_equally_divide and load_equally_divide, at least 2.
    - `topics`: names for specified_topic_count_equally_divide (one) and isolate_outstanding (none: those found by load).
    - `outstanding_percent`: the share of either limit from which a hash is outstanding, above 0.
    - `bundle_budget`: number of bundles that the namespace may still gain, at least 0; None for any number.

    Raises InvalidInput at construction for numbers out of these bounds. Positions and topics are not checked.
    """

    max_msg_rate: float = 30_000.0
    max_byte_rate: float = 100.0 * MIB
    difference_percent: float = 10.0
    midpoint: Midpoint | None = None
    positions: tuple[int, ...] = ()
    force: bool = False
    parts: int = 2
    topics: tuple[str, ...] = ()
    outstanding_percent: float = 50.0
    bundle_budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_msg_rate", "max_byte_rate", "outstanding_percent"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"split option {name} = {value}; give a finite number > 0")
        if not (math.isfinite(self.difference_percent) and self.difference_percent >= 0):
            raise InvalidInput(
                f"split option difference_percent = {self.difference_percent}; give a finite number >= 0"
            )
        if self.parts < 2:
            raise InvalidInput(f"split option parts = {self.parts}; give 2 or more")
        if self.bundle_budget is not None and self.bundle_budget < 0:
            raise InvalidInput(f"split option bundle_budget = {self.bundle_budget}; give 0 or more, or None")

    def load_share(self, msg_rate: float, byte_rate: float) -> float:
        """Return the larger of both rates (per second, in and out together), each as a share of its limit: 1.0 is a full bundle."""
        return max(msg_rate / self.max_msg_rate, byte_rate / self.max_byte_rate)


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """A bundle, the topics known in its namespace, and the options. Topics are given in any order, and kept by hash, then by name.

    Topics that lie elsewhere are dropped, so the whole list of a namespace may be given. Raises InvalidInput for a topic of the bundle that
    is listed twice.
    """

    bundle: NamespaceBundle
    topics: Sequence[BundleTopic]
    options: SplitOptions = field(default_factory=SplitOptions)

    def __post_init__(self) -> None:
        inside = sorted(
            (topic for topic in self.topics if self.bundle.contains(topic.hash_value)),
            key=lambda topic: (topic.hash_value, topic.name),
        )
        for topic, next_topic in pairwise(inside):
            if (topic.hash_value, topic.name) == (next_topic.hash_value, next_topic.name):
                raise InvalidInput(
                    f"topic {topic.name} is listed twice in bundle {self.bundle}; list it once"
                )
        object.__setattr__(self, "topics", tuple(inside))


@dataclass(frozen=True, slots=True)
class PartLoad:
    """Load of one part of a split. Rates are in and out together, per second."""

    bundle: NamespaceBundle
    topic_count: int
    msg_rate: float
    byte_rate: float


@dataclass(frozen=True, slots=True)
class CutPoints:
    """The answer of an algorithm: points in any order, and a refusal for each part of the request that was not done."""

    points: Sequence[int]
    left_undone: tuple[CutRefusal, ...] = ()


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Rising cut points strictly inside the bundle, the load of each part, and the parts of the request that were not done.

    Any broker from Pulsar 2.11 on performs the plan by `specified_positions_divide`, whichever algorithm made it.
    """

    bundle: NamespaceBundle
    algorithm: str
    cuts: tuple[int, ...]
    parts: tuple[PartLoad, ...]
    left_undone: tuple[CutRefusal, ...] = ()

    @classmethod
    def of(cls, algorithm: str, request: SplitRequest, answer: CutPoints) -> Self:
        """Create the plan of an algorithm's answer, with the load of each part; repeated points count once. `algorithm`: name of the
        algorithm. Raises InvariantViolated for no points, or a point not inside the bundle.
        """
        bundle = request.bundle
        cuts = tuple(sorted(set(answer.points)))
        if not cuts or not bundle.lower < cuts[0] <= cuts[-1] < bundle.upper:
            raise InvariantViolated(
                f"{algorithm} answered {cuts} for bundle {bundle}; cuts lie strictly inside"
            )
        hashes = [topic.hash_value for topic in request.topics]
        first = [0, *(bisect_left(hashes, cut) for cut in cuts), len(hashes)]
        parts = tuple(
            _part(part, request.topics[start:end])
            for part, (start, end) in zip(bundle.parts(cuts), pairwise(first), strict=True)
        )
        return cls(bundle, algorithm, cuts, parts, answer.left_undone)


SplitAlgorithm = Callable[[SplitRequest], CutPoints | CutRefusal]
"""Pure. Called only for bundles that can be split, and not with a budget of 0. Raises InvalidInput for options that can never be right."""


def _part(bundle: NamespaceBundle, topics: Sequence[BundleTopic]) -> PartLoad:
    return PartLoad(
        bundle,
        len(topics),
        math.fsum(topic.stats.msg_rate for topic in topics),
        math.fsum(topic.stats.byte_rate for topic in topics),
    )
