"""Asks a cluster which brokers may have which bundles, before anything is placed."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from controller.bundles.brokers.reader import BundleReader
from controller.bundles.domain.placement_rules import PlacementRules
from controller.domain.errors import InvalidInput

_AT_ONCE: Final = 16  # calls for anti-affinity groups, of which there is one for each namespace


def ask_rules(reader: BundleReader, namespaces: Iterable[str]) -> PlacementRules:
    """Active brokers, isolation policies, failure domains, and the anti-affinity groups of these namespaces.

    Raises what reading raises, Retryable while nobody answers: nothing is placed on old rules or on none.
    """
    asked = sorted(set(namespaces))
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="placement-rules") as pool:
        groups = zip(asked, pool.map(reader.anti_affinity_group, asked), strict=True)
        found = {namespace: group for namespace, group in groups if group is not None}
    return PlacementRules(
        active=frozenset(broker.name for broker in reader.brokers()),
        isolation=reader.isolation_policies(),
        failure_domains=reader.failure_domains(),
        anti_affinity_groups=found,
    )


def demand_allowed(reader: BundleReader, namespace: str, destination: str) -> None:
    """Raises InvalidInput for a broker that is not active, or that an isolation policy keeps from the namespace."""
    rules = ask_rules(reader, ())
    active = sorted(rules.active or ())
    if destination not in active:
        raise InvalidInput(
            f"{destination} is no active broker of cluster {reader.cluster}; choose one of {', '.join(active)}"
        )
    allowed = rules.allowed(namespace)
    if allowed is not None and destination not in allowed:
        rest = ", ".join(sorted(allowed)) or "none that is active"
        raise InvalidInput(
            f"isolation policies keep namespace {namespace} from {destination}; they allow {rest}"
        )
