"""Reads from a cluster which brokers may own which bundles."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from controller.bundles.brokers.reader import BundleReader
from controller.bundles.domain.placement_rules import PlacementRules
from controller.domain.errors import InvalidInput

_AT_ONCE: Final = 16  # calls for anti-affinity groups, of which there is one for each namespace


def ask_rules(reader: BundleReader, namespaces: Iterable[str]) -> PlacementRules:
    """Return the active brokers, isolation policies, failure domains, and the anti-affinity groups of these namespaces.

    Namespaces without a group are left out of the groups. Raises Retryable while no broker answers and Terminal for a refusal, so that
    bundles are never placed by outdated rules; the list of active brokers alone may be older.
    """
    names = sorted(set(namespaces))
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="placement-rules") as pool:
        answers = zip(names, pool.map(reader.anti_affinity_group, names), strict=True)
        groups = {namespace: group for namespace, group in answers if group is not None}
    return PlacementRules(
        active=frozenset(broker.name for broker in reader.brokers()),
        isolation=reader.isolation_policies(),
        failure_domains=reader.failure_domains(),
        anti_affinity_groups=groups,
    )


def demand_allowed(reader: BundleReader, namespace: str, destination: str) -> None:
    """Raise InvalidInput if `destination` is not an active broker (`host:port` as brokers are listed), or if isolation policies exclude it
    for the namespace. Reads the rules from the cluster; raises Retryable while no broker answers, and Terminal for a refusal.
    """
    rules = ask_rules(reader, ())
    active = sorted(rules.active or ())
    if destination not in active:
        raise InvalidInput(
            f"{destination} is not an active broker of cluster {reader.cluster}; choose one of {', '.join(active)}"
        )
    allowed = rules.allowed(namespace)
    if allowed is not None and destination not in allowed:
        rest = ", ".join(sorted(allowed)) or "none that is active"
        raise InvalidInput(
            f"isolation policies exclude broker {destination} for namespace {namespace}; they allow {rest}"
        )
