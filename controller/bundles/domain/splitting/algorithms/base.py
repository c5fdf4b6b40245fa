"""Request and answer of a split algorithm: cut points with the load of each part, or a refusal; and the places of topics.

One record of options serves every algorithm. In Pulsar the class of the options follows from the *configured*
algorithm, and selecting another one by name fails in a cast. `splitting.policy` runs the algorithm and checks what all
algorithms have in common. `ring` applies the answer. A refusal has a reason, values and a sentence; in Pulsar
such a split succeeds silently and changes nothing.

Topics of one hash can never be separated. Nor can those at 0xfffffffe and 0xffffffff, because no boundary can lie between
them: the last boundary is 0xffffffff. Grouping by *place* first keeps every answer valid. Loads of topics at one place are
added, and a cut is never given twice and never on an end.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby, pairwise
from typing import Self

from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.ring import LAST_HASH, NamespaceBundle, topic_hash
from controller.domain.errors import InvalidInput, InvariantViolated
from controller.domain.pulsar_names import canonical_topic_name


class CutRefusalReason(StrEnum):
    """Reason for which there is no cut. The comment says what `value` and `needed` hold."""

    # The bundle.
    NOT_SPLITTABLE = "not-splittable"  # upper - lower; the least that can be cut
    TOO_FEW_TOPICS = "too-few-topics"  # topics in the bundle, or those of the topic that was named; 2
    ONE_HASH = "one-hash"  # distinct places of those topics; 2
    AT_MAX_BUNDLES = "at-max-bundles"  # bundles the namespace may still gain; bundles this would add
    # Load.
    NO_LOAD = "no-load"  # distinct places with any load; 2
    BELOW_LIMIT = "below-limit"  # the rate nearest to its limit; the rate from which it is cut
    NONE_OUTSTANDING = "none-outstanding"  # the highest rate of one place; the rate of an outstanding one
    # Requested by name or number.
    NO_POSITION_INSIDE = "no-position-inside"  # positions given; 1
    POSITION_OUTSIDE = "position-outside"  # the position; the edge it is beyond
    TOPIC_NOT_HERE = "topic-not-here"  # topics of that name in the bundle; 1
    # Impossible for all cuts.
    INSEPARABLE = "inseparable"  # topics at one place; 1
    ABOVE_LIMIT_ALONE = "above-limit-alone"  # the rate of one place; the limit
    FEWER_PARTS = "fewer-parts"  # parts made; parts requested


_SENTENCES = {
    CutRefusalReason.NOT_SPLITTABLE: "it spans {value} hashes; a cut needs {needed}",
    CutRefusalReason.TOO_FEW_TOPICS: "{value} topics in it; a split needs {needed}",
    CutRefusalReason.ONE_HASH: "all its topics share one hash; a cut needs {needed} different ones",
    CutRefusalReason.AT_MAX_BUNDLES: (
        "the namespace may gain {value} bundles; this adds {needed}: raise the cap or merge"
    ),
    CutRefusalReason.NO_LOAD: "load at {value} different hashes; dividing it needs {needed}",
    CutRefusalReason.BELOW_LIMIT: "its {metric} is {value}; a cut takes {needed}, and more than the limit",
    CutRefusalReason.NONE_OUTSTANDING: (
        "no topic stands out: the highest {metric} is {value}; outstanding is {needed} or more"
    ),
    CutRefusalReason.NO_POSITION_INSIDE: "none of {value} positions is strictly inside it; give at least {needed}",
    CutRefusalReason.POSITION_OUTSIDE: "position {value} is not strictly inside the bundle; its edge is {needed}",
    CutRefusalReason.TOPIC_NOT_HERE: (
        "{value} topics of that name are known in the bundle; look up which bundle it is in"
    ),
    CutRefusalReason.INSEPARABLE: "{value} topics share a hash and stay together",
    CutRefusalReason.ABOVE_LIMIT_ALONE: (
        "its {metric} is {value}, above {needed} alone, and no cut divides a topic: add partitions"
    ),
    CutRefusalReason.FEWER_PARTS: (
        "{value} parts instead of {needed}: not enough different hashes with load, or room for bundles"
    ),
}


@dataclass(frozen=True, slots=True)
class CutRefusal:
    """A request, or a part of it, that was not done. `subject`: the text of the bundle, or the names of topics.

    `CutRefusalReason` says what `value` and `needed` hold. `metric` names their kind (`msg_rate`, `byte_rate`, `topics`, `hashes`,
    `bundles`, `positions`, `hash`).
    """

    subject: str
    reason: CutRefusalReason
    metric: str
    value: float
    needed: float | None = None

    @property
    def sentence(self) -> str:
        """One line for people, with the figures."""
        shown = _hash_shown if self.metric == "hash" else _number_shown
        sentence = _SENTENCES[self.reason].format(
            metric=self.metric,
            value=shown(self.value),
            needed="" if self.needed is None else shown(self.needed),
        )
        return f"{self.subject}: {sentence}"


def _number_shown(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


def _hash_shown(value: float) -> str:
    return f"0x{int(value):08x}"


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


LAST_PLACE = LAST_HASH - 1


@dataclass(frozen=True, slots=True)
class Place:
    """A group of topics that no cut can separate: its hash, and its summed rates per second, in and out."""

    at: int
    topics: tuple[BundleTopic, ...]
    msg_rate: float
    byte_rate: float

    @property
    def label(self) -> str:
        """The names of the topics, for a sentence."""
        return ", ".join(topic.name for topic in self.topics)

    def peak(self, options: SplitOptions) -> tuple[str, float, float]:
        """Return `(metric, rate, limit)` of the rate that is nearer to its limit; messages if both are equally near."""
        return peak(self.msg_rate, self.byte_rate, options)


def peak(msg_rate: float, byte_rate: float, options: SplitOptions) -> tuple[str, float, float]:
    """Return `(metric, rate, limit)` of the rate that is nearer to its limit; messages if both are equally near."""
    if msg_rate / options.max_msg_rate >= byte_rate / options.max_byte_rate:
        return "msg_rate", msg_rate, options.max_msg_rate
    return "byte_rate", byte_rate, options.max_byte_rate


def place_of(hash_value: int) -> int:
    """Return the hash that identifies the place of a topic: its own hash, except that the last two hashes of the ring are one place."""
    return min(hash_value, LAST_PLACE)


def places(topics: Sequence[BundleTopic]) -> tuple[Place, ...]:
    """Group the topics that no cut can separate into places, and return the places by rising hash, each with the sums
    of its topics' rates. Empty without topics. The sums do not depend on the order of the topics.
    """
    ordered = sorted(topics, key=lambda topic: (topic.hash_value, topic.name))
    groups = ((at, tuple(group)) for at, group in groupby(ordered, lambda topic: place_of(topic.hash_value)))
    return tuple(
        Place(
            at,
            group,
            math.fsum(topic.stats.msg_rate for topic in group),
            math.fsum(topic.stats.byte_rate for topic in group),
        )
        for at, group in groups
    )


def cut_between(low: int, high: int, midpoint: Midpoint) -> int:
    """Return a cut that leaves place `low` below and `high` (> `low`) at or above it: low < cut <= high.

    By the lower rule, neighbouring hashes would give `low` itself, and the lower topic would change sides. The cut is then `high`.
    """
    middle = low + (high - low) // 2 + (midpoint is Midpoint.UPPER)
    return max(middle, low + 1)


def too_few(bundle: NamespaceBundle, topics: Sequence[BundleTopic]) -> CutRefusal | None:
    """Return the refusal for a bundle with fewer than two topics, or whose topics no cut can separate. None for other bundles."""
    subject = str(bundle)
    if len(topics) < 2:
        return CutRefusal(subject, CutRefusalReason.TOO_FEW_TOPICS, "topics", len(topics), 2)
    if (distinct := len({place_of(topic.hash_value) for topic in topics})) < 2:
        return CutRefusal(subject, CutRefusalReason.ONE_HASH, "hashes", distinct, 2)
    return None


def loaded_places(request: SplitRequest) -> tuple[Place, ...] | CutRefusal:
    """Return the groups of inseparable topics that have any load, by hash, at least two of them. Return the refusal if the bundle has fewer
    such groups.
    """
    if refusal := too_few(request.bundle, request.topics):
        return refusal
    loaded = tuple(place for place in places(request.topics) if place.msg_rate > 0 or place.byte_rate > 0)
    if len(loaded) < 2:
        return CutRefusal(str(request.bundle), CutRefusalReason.NO_LOAD, "hashes", len(loaded), 2)
    return loaded
