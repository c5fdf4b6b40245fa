"""Random clusters, as Cleave sees them and as Pulsar's classes read them. Everything follows from the seed.

Half of the usages are whole percents, so that limits are hit exactly; some loads are equal, some huge, some bundles
unknown, just moved or the brokers' own. Brokers have one-letter names: in that order Pulsar's hash maps walk them
too, so sums are added up in the same order and equal brokers are found in the same order.
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass, replace
from typing import Any

from controller.bundles.domain.balancing.moves import BalanceState
from controller.bundles.domain.balancing.settings import MIB, BalanceSettings
from controller.bundles.domain.cluster import Broker, BrokerReport, Bundle, Cluster
from controller.bundles.domain.load import (
    RESOURCES,
    BrokerResources,
    BundleLoad,
    BundleStats,
    ResourceUsage,
    TimeAverage,
)

_SPARE = "t/spare/0x00000000_0xffffffff"  # nobody's, so that there is always a bundle to place
NOW_MS = 1_800_000_000_000
_JAVA_RESOURCES = dict(
    zip(RESOURCES, ("cpu", "directMemory", "bandwidthIn", "bandwidthOut", "memory"), strict=True)
)


@dataclass(frozen=True)
class CaseCycle:
    """One cycle: ours, Pulsar's, who may take a bundle, and ours with usages as Pulsar reads them."""

    cluster: Cluster
    document: dict[str, Any]
    candidates: tuple[str, ...]
    reads: Cluster


@dataclass(frozen=True)
class Case:
    """Some cycles of one cluster under one configuration."""

    seed: int
    settings: BalanceSettings
    properties: dict[str, Any]
    state: BalanceState
    cycles: tuple[CaseCycle, ...]

    def request(self) -> dict[str, Any]:
        """What the worker is asked."""
        setters = {f"set{name[0].upper()}{name[1:]}": value for name, value in self.properties.items()}
        return {"configuration": setters, "cycles": [cycle.document for cycle in self.cycles]}


def case(seed: int, cycles: int = 3) -> Case:
    """The case of that seed."""
    rng = random.Random(seed)
    properties = _properties(rng)
    brokers = "abcdefgh"[: rng.randint(2, 6)]
    bundles = [_bundle_name(rng, index) for index in range(rng.randint(2, 14))]
    owners = {name: rng.choice(brokers) for name in bundles}
    recent = {name: NOW_MS - rng.randint(0, 1_000_000) for name in bundles if rng.random() < 0.08}
    candidates = _some(rng, brokers)
    made = []
    for _ in range(cycles):
        candidates = candidates if rng.random() < 0.7 else _some(rng, brokers)
        made.append(_cycle(rng, brokers, owners, recent, candidates))
    state = BalanceState(unloaded_bundles=recent)
    return Case(seed, _settings(properties), properties, state, tuple(made))


def as_pulsar_reads(cluster: Cluster) -> Cluster:
    """The cluster with usages as Pulsar's 32-bit floats leave them."""
    return Cluster(
        tuple(replace(broker, report=broker.report and _single(broker.report)) for broker in cluster.brokers),
        cluster.bundles,
        cluster.policies,
    )


def _single(report: BrokerReport) -> BrokerReport:
    def rounded(usage: ResourceUsage) -> ResourceUsage:
        if usage.limit <= 0:
            return ResourceUsage()
        percent = _float32(_float32(_float32(usage.usage) / _float32(usage.limit)) * 100)
        return ResourceUsage(percent, 100.0)

    resources = {name: rounded(getattr(report.resources, name)) for name in RESOURCES}
    return replace(report, resources=BrokerResources(**resources))


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _properties(rng: random.Random) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "loadBalancerBrokerOverloadedThresholdPercentage": rng.choice([50, 70, 85]),
        "loadBalancerBrokerThresholdShedderPercentage": rng.choice([5, 10, 20]),
        "loadBalancerHistoryResourcePercentage": rng.choice([0.5, 0.9]),
        "loadBalancerBundleUnloadMinThroughputThreshold": rng.choice([0.0, 0.5, 10.0]),
        "lowerBoundarySheddingEnabled": rng.random() < 0.5,
        "loadBalancerMsgRateDifferenceShedderThreshold": rng.choice([0.0, 25.0, 50.0, 100.0]),
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": rng.choice([0.0, 1.5, 4.0]),
        "maxUnloadPercentage": rng.choice([0.2, 0.5, 1.0]),
        "minUnloadMessage": rng.choice([0, 100, 1000]),
        "minUnloadMessageThroughput": rng.choice([0, 1000, 1024 * 1024]),
        "maxUnloadBundleNumPerShedding": rng.choice([-1, -1, 1, 2]),
        "loadBalancerAvgShedderLowThreshold": rng.choice([10, 15, 20]),
        "loadBalancerAvgShedderHighThreshold": rng.choice([30, 40, 50]),
        "loadBalancerAvgShedderHitCountLowThreshold": rng.choice([1, 2, 8]),
        "loadBalancerAvgShedderHitCountHighThreshold": rng.choice([1, 2]),
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage": rng.choice([0, 10]),
    }
    for weight in ("CPU", "DirectMemory", "BandwidthIn", "BandwidthOut"):
        if rng.random() < 0.3:
            properties[f"loadBalancer{weight}ResourceWeight"] = rng.choice([0.0, 0.5, 1.0])
    return properties


def _settings(properties: dict[str, Any]) -> BalanceSettings:
    defaults = BalanceSettings()
    short = {name.removeprefix("loadBalancer"): value for name, value in properties.items()}
    return BalanceSettings(
        cpu_weight=short.get("CPUResourceWeight", defaults.cpu_weight),
        direct_memory_weight=short.get("DirectMemoryResourceWeight", defaults.direct_memory_weight),
        bandwidth_in_weight=short.get("BandwidthInResourceWeight", defaults.bandwidth_in_weight),
        bandwidth_out_weight=short.get("BandwidthOutResourceWeight", defaults.bandwidth_out_weight),
        overloaded_usage=short["BrokerOverloadedThresholdPercentage"] / 100,
        threshold_margin=short["BrokerThresholdShedderPercentage"] / 100,
        history_weight=short["HistoryResourcePercentage"],
        threshold_min_byte_rate=short["BundleUnloadMinThroughputThreshold"] * MIB,
        threshold_lower_boundary=short["lowerBoundarySheddingEnabled"],
        uniform_msg_rate_difference=short["MsgRateDifferenceShedderThreshold"] / 100,
        uniform_byte_rate_ratio=short["MsgThroughputMultiplierDifferenceShedderThreshold"],
        unload_fraction=short["maxUnloadPercentage"],
        min_unload_msg_rate=short["minUnloadMessage"],
        min_unload_byte_rate=short["minUnloadMessageThroughput"],
        max_unload_bundles=short["maxUnloadBundleNumPerShedding"],
        avg_low_usage=short["AvgShedderLowThreshold"] / 100,
        avg_high_usage=short["AvgShedderHighThreshold"] / 100,
        avg_low_hits=short["AvgShedderHitCountLowThreshold"],
        avg_high_hits=short["AvgShedderHitCountHighThreshold"],
        placement_usage_gap=short["AverageResourceUsageDifferenceThresholdPercentage"] / 100,
        strict_pulsar=True,  # the lower boundary's second step of the averages
    )


def _bundle_name(rng: random.Random, index: int) -> str:
    namespace = rng.choice(["t/a", "t/b", "u/a"])
    if rng.random() < 0.05:
        namespace = rng.choice(["pulsar/system", "pulsar/localhost:8080", "sla-monitor/localhost:8080"])
    return f"{namespace}/0x{index:08x}_0x{index + 1:08x}"


def _some(rng: random.Random, brokers: str) -> tuple[str, ...]:
    return tuple(sorted(rng.sample(brokers, rng.randint(1, len(brokers)))))


def _cycle(
    rng: random.Random,
    names: str,
    owners: dict[str, str],
    recent: dict[str, int],
    candidates: tuple[str, ...],
) -> CaseCycle:
    size = rng.choice([1.0, 1.0, 1.0, 1.0, 1_000.0]) * rng.choice([1e3, 1e6, 3e6])
    bundles = [_bundle(rng, name, owner, size) for name, owner in owners.items()]
    bundles.append(_bundle(rng, _SPARE, None, size, known=True))
    brokers = []
    for name in names:
        owned = [b.stats for b in bundles if b.owner == name and b.stats is not None]
        skew = rng.choice([0.8, 1.0, 1.0, 1.3])
        stats = BundleStats(
            *(sum(getattr(s, rate) for s in owned) * skew for rate in ("msg_rate_in", "msg_rate_out")),
            *(sum(getattr(s, rate) for s in owned) * skew for rate in ("byte_rate_in", "byte_rate_out")),
        )
        brokers.append(Broker(name, BrokerReport(_resources(rng), stats, NOW_MS)))
    # What Java reads stays text: the worker hands it on as it is.
    document = {
        "names": list(names),
        "spare": _SPARE,
        "brokers": json.dumps({broker.name: _broker_document(broker, owners) for broker in brokers}),
        "bundles": json.dumps({b.bundle_id: _bundle_document(b.load) for b in bundles if b.load is not None}),
        "recent": json.dumps(recent),
        "candidates": json.dumps(candidates),
    }
    cluster = Cluster(tuple(brokers), tuple(bundles))
    return CaseCycle(cluster, document, candidates, as_pulsar_reads(cluster))


def _resources(rng: random.Random) -> BrokerResources:
    top = rng.choice([60, 100, 130])

    def usage() -> ResourceUsage:
        if rng.random() < 0.5:
            return ResourceUsage(float(rng.randint(0, top)), 100.0)
        limit = rng.choice([0.0, 100.0, 800.0, 1.25e6])
        return ResourceUsage(rng.uniform(0, top / 100) * (limit or 100.0), limit)

    return BrokerResources(usage(), usage(), usage(), usage(), usage())


def _bundle(rng: random.Random, name: str, owner: str | None, size: float, *, known: bool = False) -> Bundle:
    if not known and rng.random() < 0.1:
        return Bundle(name, owner)
    if rng.random() < 0.2:  # from a few values, so that some are equal, and some nothing
        rates = [float(rng.randint(0, 2)) * size / 1_000 * unit for unit in (1, 1, 1_000, 1_000)]
    else:
        rates = [rng.lognormvariate(0, 1) * size / 1_000 * unit for unit in (1, 1, 1_000, 1_000)]
    short = TimeAverage(10, rng.randint(1, 10), *rates)
    long_term = TimeAverage(1000, rng.randint(1, 1000), *(rate * rng.uniform(0.5, 1.5) for rate in rates))
    return Bundle(name, owner, BundleStats(*rates), BundleLoad(short, long_term))


def _broker_document(broker: Broker, owners: dict[str, str]) -> dict[str, Any]:
    assert broker.report is not None
    stats, resources = broker.report.stats, broker.report.resources
    usages = {java: getattr(resources, name) for name, java in _JAVA_RESOURCES.items()}
    return {
        "bundles": sorted(name for name, owner in owners.items() if owner == broker.name),
        "msgRateIn": stats.msg_rate_in,
        "msgRateOut": stats.msg_rate_out,
        "msgThroughputIn": stats.byte_rate_in,
        "msgThroughputOut": stats.byte_rate_out,
        **{java: {"usage": usage.usage, "limit": usage.limit} for java, usage in usages.items()},
    }


def _bundle_document(load: BundleLoad) -> dict[str, Any]:
    return {"shortTermData": _average(load.short_term), "longTermData": _average(load.long_term), "topics": 1}


def _average(average: TimeAverage) -> dict[str, Any]:
    return {
        "maxSamples": average.max_samples,
        "numSamples": average.sample_count,
        "msgRateIn": average.msg_rate_in,
        "msgRateOut": average.msg_rate_out,
        "msgThroughputIn": average.byte_rate_in,
        "msgThroughputOut": average.byte_rate_out,
    }
