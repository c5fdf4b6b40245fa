"""Random clusters for the transfer shedder, as Cleave sees them and as Pulsar's class reads them.

Made of those of `balance_clusters`: the same brokers and bundles, told at different ages, some brokers silent, some
bundles and brokers just shed, some namespaces excluded. Everything follows from the seed.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import Any

from controller.bundles.domain.balancing.moves import BalanceState
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.transfer import reported_bundles
from controller.bundles.domain.cluster import Broker, Cluster
from tests.oracle.balance_clusters import NOW_MS, as_pulsar_reads, case

MINUTE_MS = 60_000
TTL_SECONDS = 1_800


@dataclass(frozen=True)
class TransferCycle:
    """One cycle: the cluster as Pulsar reads it, when it is asked, and the same as a document."""

    cluster: Cluster
    now_ms: int
    document: dict[str, Any]


@dataclass(frozen=True)
class TransferCase:
    """Some cycles of one cluster under one configuration; `state` is what the first one begins with."""

    seed: int
    settings: BalanceSettings
    properties: dict[str, Any]
    excluded: tuple[str, ...]
    state: BalanceState
    cycles: tuple[TransferCycle, ...]

    def request(self) -> dict[str, Any]:
        """What the worker is asked."""
        setters = {f"set{name[0].upper()}{name[1:]}": value for name, value in self.properties.items()}
        documents = [cycle.document for cycle in self.cycles]
        return {"configuration": setters, "excluded_namespaces": self.excluded, "cycles": documents}


def transfer_case(seed: int, cycles: int) -> TransferCase:
    """The case of that seed. Whoever is asked with debug logging counts what is swapped back, as Cleave does."""
    rng = random.Random(f"transfer {seed}")
    plain = case(seed, cycles)
    properties: dict[str, Any] = {
        "loadBalancerBrokerLoadTargetStd": rng.choice([0.05, 0.15, 0.25]),
        "loadBalancerSheddingConditionHitCountThreshold": rng.choice([0, 0, 0, 1]),
        "loadBalancerTransferEnabled": rng.random() < 0.85,
        "loadBalancerMaxNumberOfBrokerSheddingPerCycle": rng.choice([1, 3]),
        "loadBalanceSheddingDelayInSeconds": 180,
        "loadBalancerBrokerLoadDataTTLInSeconds": TTL_SECONDS,
        "loadBalancerMaxNumberOfBundlesInBundleLoadReport": rng.choice([3, 10]),
        "loadBalancerDebugModeEnabled": rng.random() < 0.5,
        "loadBalancerSheddingBundlesWithPoliciesEnabled": True,  # none has any
    }
    excluded = ("t/b",) if rng.random() < 0.2 else ()
    settings = replace(
        plain.settings,
        shedder="transfer",
        excluded_namespaces=",".join(excluded),
        transfer_target_std=properties["loadBalancerBrokerLoadTargetStd"],
        transfer_hits=properties["loadBalancerSheddingConditionHitCountThreshold"],
        transfer_enabled=properties["loadBalancerTransferEnabled"],
        transfer_max_sources=properties["loadBalancerMaxNumberOfBrokerSheddingPerCycle"],
        transfer_top_bundles=properties["loadBalancerMaxNumberOfBundlesInBundleLoadReport"],
        strict_pulsar=not properties["loadBalancerDebugModeEnabled"],
    )
    shed_ms_ago = {
        broker.name: rng.choice([100_000, 179_999, 180_000, 600_000])
        for broker in plain.cycles[0].cluster.brokers
        if rng.random() < 0.05
    }
    now = [NOW_MS + index * MINUTE_MS for index in range(cycles)]
    state = replace(plain.state, unloaded_brokers={name: NOW_MS - ago for name, ago in shed_ms_ago.items()})
    names, owners = _closer_together(rng, plain.cycles[0].cluster)
    made = tuple(
        _cycle(rng, _kept(one.cluster, names, owners), one.document, at, settings, state)
        for one, at in zip(plain.cycles, now, strict=True)
    )
    merged = {**{n: v for n, v in plain.properties.items() if n not in properties}, **properties}
    return TransferCase(seed, settings, merged, excluded, state, made)


def _closer_together(rng: random.Random, cluster: Cluster) -> tuple[list[str], dict[str, str]]:
    """Brokers that stay and who owns what then, in half of the cases only two brokers: with several bundles on either
    side there is more to swap.
    """
    names = [broker.name for broker in cluster.brokers]
    keep = names[:2] if rng.random() < 0.5 else names
    owned = [bundle for bundle in cluster.bundles if bundle.owner is not None]
    return keep, {b.bundle_id: b.owner if b.owner in keep else rng.choice(keep) for b in owned if b.owner}


def _kept(cluster: Cluster, names: list[str], owners: dict[str, str]) -> Cluster:
    moved = cluster.with_owners(owners)
    return Cluster(tuple(one for one in moved.brokers if one.name in names), moved.bundles)


def _cycle(
    rng: random.Random,
    plain: Cluster,
    document: dict[str, Any],
    now_ms: int,
    settings: BalanceSettings,
    state: BalanceState,
) -> TransferCycle:
    ages = {
        broker.name: rng.choices([0, 30_000, (TTL_SECONDS + 60) * 1_000], [40, 10, 1])[0]
        for broker in plain.brokers
    }
    silent = {broker.name for broker in plain.brokers if rng.random() < 0.01}

    def reported(broker: Broker) -> Broker:
        report = None if broker.name in silent or broker.report is None else broker.report
        return replace(broker, report=report and replace(report, reported_at=now_ms - ages[broker.name]))

    aged = Cluster(tuple(reported(broker) for broker in plain.brokers), plain.bundles)
    cluster = as_pulsar_reads(aged)
    heard = [broker.name for broker in plain.brokers if broker.name not in silent]
    tops = {name: [b.bundle_id for b in reported_bundles(cluster, name, settings)] for name in heard}
    owned = {name: [b.bundle_id for b in plain.bundles_of(name) if b.stats is not None] for name in heard}
    return TransferCycle(
        cluster,
        now_ms,
        {
            "brokers": document["brokers"],
            "bundles": json.dumps(
                {b.bundle_id: _stats(b.stats) for b in plain.bundles if b.stats is not None}
            ),
            "candidates": heard[: max(2, len(heard) - (now_ms - NOW_MS) // MINUTE_MS)],
            "available": [broker.name for broker in plain.brokers],
            "now_ms": now_ms,
            "told_ms_ago": {name: ages[name] for name in heard},
            "recent_bundles": json.dumps(dict(state.unloaded_bundles)),
            "recent_brokers": {name: now_ms - at for name, at in state.unloaded_brokers.items()},
            "tops": tops,
            "owned": owned,
        },
    )


def _stats(stats: Any) -> dict[str, Any]:
    return {
        "msgRateIn": stats.msg_rate_in,
        "msgRateOut": stats.msg_rate_out,
        "msgThroughputIn": stats.byte_rate_in,
        "msgThroughputOut": stats.byte_rate_out,
        "topics": stats.topic_count,
        "producerCount": stats.producer_count,
        "consumerCount": stats.consumer_count,
        "cacheSize": stats.cache_size_bytes,
    }
