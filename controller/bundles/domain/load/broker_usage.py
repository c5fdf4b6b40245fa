"""Load of a broker: the used share of each resource, one number computed from the shares, and reports that lack limits.

These are Pulsar's `ResourceUsage` and the three maxima of its `LocalBrokerData`. Pulsar computes in 32-bit floats
(30 of 100 becomes 0.30000001). Everything here is 64-bit, so figures agree to about 1e-7, and a reading that equals
a threshold to the last bit may be answered differently. Averages over time are in `averages`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final


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
