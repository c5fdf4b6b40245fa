"""Load as brokers report it: figures of a bundle, their averages, the order of bundles by weight, and how full a broker is. Pure.

The figures of a broker are Pulsar's `ResourceUsage` and the three maxima of its `LocalBrokerData`. Pulsar computes in 32-bit floats
(30 of 100 becomes 0.30000001). Everything here is 64-bit, so figures agree to about 1e-7, and a reading that equals
a threshold to the last bit may be answered differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self


@dataclass(frozen=True, slots=True)
class BundleStats:
    """Rates of messages and bytes per second, and counts, at one instant. No value is negative."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    byte_rate_in: float = 0.0
    byte_rate_out: float = 0.0
    topic_count: int = 0
    producer_count: int = 0
    consumer_count: int = 0
    cache_size_bytes: int = 0

    @property
    def msg_rate(self) -> float:
        """Messages per second, in and out together. Pulsar calls it the rate of a bundle."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def byte_rate(self) -> float:
        """Bytes per second, in and out together. Pulsar calls it throughput."""
        return self.byte_rate_in + self.byte_rate_out

    @property
    def session_count(self) -> int:
        """Producers and consumers together."""
        return self.producer_count + self.consumer_count


_DIRECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "bandwidth_in": ("byte_rate_in",),
    "bandwidth_out": ("byte_rate_out",),
}


def figures_of(resource: str) -> tuple[str, ...]:
    """Return the names of the figures of a bundle that stand for its use of a resource: the byte rate of one direction for a bandwidth,
    `msg_rate` and `byte_rate` for any other name.
    """
    return _DIRECTIONS.get(resource, ("msg_rate", "byte_rate"))


def totals(all_stats: Iterable[BundleStats], figures: Sequence[str]) -> tuple[float, ...]:
    """Return the sum of each of these figures, in their order, over a broker's bundles."""
    bundles = list(all_stats)
    return tuple(sum(float(getattr(stats, figure)) for stats in bundles) for figure in figures)


def share_of(stats: BundleStats, sums: Sequence[float], figures: Sequence[str]) -> float:
    """Return a bundle's share of its broker's load, 0 to 1: the mean of its shares of the totals `sums` over the figures whose total is
    above 0; 0 if no total is. `sums` are the `totals` of the same `figures`, in the same order.
    """
    shares = [
        float(getattr(stats, figure)) / total
        for figure, total in zip(figures, sums, strict=True)
        if total > 0
    ]
    return sum(shares) / len(shares) if shares else 0.0


def bundle_order(stats: BundleStats) -> tuple[int, int, int, int, int]:
    """Return the key that sorts bundles by weight, lightest first. Bundles in the same buckets are equal.

    Byte rates in and out (buckets of 1e5) and messages (of 100) are rounded. Topics with sessions (of 500) and cache (of 1e5) are cut
    off. An older rule of Pulsar's, "equal if the difference is small", is not transitive and broke sorting (apache/pulsar#24754).
    """
    return (
        _rounded(stats.byte_rate_in / 1e5),
        _rounded(stats.byte_rate_out / 1e5),
        _rounded(stats.msg_rate / 100),
        int((stats.topic_count + stats.session_count) / 500),
        int(stats.cache_size_bytes / 1e5),
    )


def _rounded(value: float) -> int:
    """Round as Java does: halves go up."""
    return math.floor(value + 0.5)


def top_bundles(bundles: Mapping[str, BundleStats], count: int) -> tuple[str, ...]:
    """Return the `count` heaviest bundles, the lightest of them first, equal ones by name.

    If not all of several equal bundles fit, the first by name are taken.
    """
    heaviest_first = sorted(
        bundles,
        key=lambda bundle: ([-part for part in bundle_order(bundles[bundle])], bundle),
    )[:count]
    return tuple(sorted(heaviest_first, key=lambda bundle: (bundle_order(bundles[bundle]), bundle)))


SHORT_TERM_SAMPLES: Final = 10
LONG_TERM_SAMPLES: Final = 1000
_SEED_MSG_RATE: Final = 50.0
_SEED_BYTE_RATE: Final = 50_000.0


def moving_average(old: float | None, current: float, history: float) -> float:
    """Return `old` with weight `history` (0 to 1) plus `current` with the remaining weight; `current` if `old` is None."""
    return current if old is None else old * history + current * (1 - history)


@dataclass(frozen=True, slots=True)
class TimeAverage:
    """Pulsar's `TimeAverageMessageData`: rates averaged over samples.

    It is not a window. Once `sample_count` has reached `max_samples`, each new sample has the weight 1 /
    `max_samples`, and old samples never leave entirely. A bundle without a sample has Pulsar's initial values,
    which its first sample replaces.
    """

    max_samples: int
    sample_count: int = 0
    msg_rate_in: float = _SEED_MSG_RATE
    msg_rate_out: float = _SEED_MSG_RATE
    byte_rate_in: float = _SEED_BYTE_RATE
    byte_rate_out: float = _SEED_BYTE_RATE

    @property
    def msg_rate(self) -> float:
        """Messages per second, in and out together."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def byte_rate(self) -> float:
        """Bytes per second, in and out together."""
        return self.byte_rate_in + self.byte_rate_out

    def with_sample(self, stats: BundleStats) -> Self:
        """Return the averages after one more sample; only its rates count. The first sample replaces the initial values."""
        count = min(self.sample_count + 1, self.max_samples)

        def average(old: float, new: float) -> float:
            return ((count - 1) * old + new) / count

        return type(self)(
            self.max_samples,
            count,
            average(self.msg_rate_in, stats.msg_rate_in),
            average(self.msg_rate_out, stats.msg_rate_out),
            average(self.byte_rate_in, stats.byte_rate_in),
            average(self.byte_rate_out, stats.byte_rate_out),
        )


@dataclass(frozen=True, slots=True)
class BundleLoad:
    """Average load of a bundle: over about the last 10 samples (used by the shedders `avg`, `overload`, `threshold` and `uniform`), and
    over about the last 1,000.
    """

    short_term: TimeAverage = TimeAverage(SHORT_TERM_SAMPLES)
    long_term: TimeAverage = TimeAverage(LONG_TERM_SAMPLES)

    def with_sample(self, stats: BundleStats) -> Self:
        """Return both averages after one more sample."""
        return type(self)(self.short_term.with_sample(stats), self.long_term.with_sample(stats))


UNKNOWN_LOAD: Final = BundleLoad()
"""The load that a bundle counts as until its first sample."""


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Usage and limit of a resource, both in the same unit. A limit <= 0 counts as unknown."""

    usage: float = 0.0
    limit: float = 0.0

    @property
    def fraction(self) -> float:
        """The share of the resource in use, 1.0 if all is used. The share is above 1.0 if the limit is measured wrongly, and 0 if the
        limit is unknown.
        """
        return self.usage / self.limit if self.limit > 0 else 0.0


@dataclass(frozen=True, slots=True)
class BrokerResources:
    """Resource usage that a broker reports. By default `memory` (the heap) counts in no maximum."""

    cpu: ResourceUsage = ResourceUsage()
    direct_memory: ResourceUsage = ResourceUsage()
    bandwidth_in: ResourceUsage = ResourceUsage()
    bandwidth_out: ResourceUsage = ResourceUsage()
    memory: ResourceUsage = ResourceUsage()


RESOURCES: Final = ("cpu", "direct_memory", "bandwidth_in", "bandwidth_out", "memory")
"""Every resource by name, in the order of declaration."""


def max_usage(resources: BrokerResources) -> float:
    """Return the largest share in use of processor, direct memory and bandwidth. The heap does not count."""
    return max(
        resources.cpu.fraction,
        resources.direct_memory.fraction,
        resources.bandwidth_in.fraction,
        resources.bandwidth_out.fraction,
    )


def weighted_max_usage(resources: BrokerResources, weights: Mapping[str, float]) -> float:
    """Return the largest share in use after each was multiplied by its weight. A share above 1.0 is not cut.

    Older versions of Pulsar's threshold shedder dropped shares above 1.0, because a virtual network card often reports a tenth of its
    real speed (apache/pulsar#16937, disputed in #18598). 4.2.4 does not drop them, because a broker at 120 % would look idle. If a limit
    is measured wrongly, its resource needs the weight 0.
    """
    return max(weighted for _, weighted in _weighted(resources, weights))


def dominating_resource(resources: BrokerResources, weights: Mapping[str, float]) -> str:
    """Return the name of the resource with the largest weighted share; of equal ones the first in `RESOURCES`."""
    return max(_weighted(resources, weights), key=lambda pair: pair[1])[0]


def unknown_usage(
    reports: Mapping[str, BrokerResources], weights: Mapping[str, float]
) -> dict[str, frozenset[str]]:
    """Return the brokers whose usage is unknown, each with the resources whose limit its report lacks. `reports` are by broker. Only
    resources with a weight above 0 count.

    The usage of a broker is unknown if its report has a limit for no counting resource, or lacks the limit of a counting resource for
    which another broker reports a limit. Such a broker would otherwise look idle. The set of a broker is empty if no broker reports a
    limit of a counting resource.
    """
    counting = {name for name, weight in weights.items() if weight > 0}
    limited = {
        broker: {name for name in counting if getattr(resources, name).limit > 0}
        for broker, resources in reports.items()
    }
    wanted = frozenset[str]().union(*limited.values())
    return {broker: wanted - names for broker, names in limited.items() if not names or wanted - names}


def _weighted(resources: BrokerResources, weights: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name in RESOURCES:
        yield name, getattr(resources, name).fraction * weights[name]
