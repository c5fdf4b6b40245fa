"""A look for merges at every namespace of a cycle: the same readings that splits and moves are decided on.

Only shown, never done: Pulsar cannot merge. How often each bundle was seen cold goes from cycle to cycle with the
rest of the state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from controller.bundles.domain.cluster import Bundle, Cluster
from controller.bundles.domain.cycle import CycleInputs, report_of
from controller.bundles.domain.merge_answers import MergeCycle, MergeVerdict
from controller.bundles.domain.merging import MergeSettings, plan_merges
from controller.bundles.domain.namespace_bundle import NamespaceBundle
from controller.bundles.domain.namespace_bundles import NamespaceBundles


def look_for_merges(
    inputs: CycleInputs, cold_cycles: Mapping[NamespaceBundle, int]
) -> dict[str, MergeVerdict]:
    """The verdict on each namespace that has a policy, by name; `cold_cycles` as the last look returned them."""
    cluster = inputs.balance.cluster
    of_namespace: defaultdict[str, list[Bundle]] = defaultdict(list)
    for bundle in cluster.bundles:
        of_namespace[bundle.namespace].append(bundle)
    busy = [NamespaceBundle.parse(text) for text in sorted(inputs.busy)]
    verdicts = {}
    for namespace, policy in sorted(inputs.policies.items()):
        if not of_namespace[namespace]:
            continue
        cut = sorted(NamespaceBundle.parse(one.bundle_id) for one in of_namespace[namespace])
        cycle = MergeCycle(
            now_ms=inputs.balance.now_ms,
            bundles=NamespaceBundles(namespace, (*(one.lower for one in cut), cut[-1].upper)),
            reports=[report_of(one) for one in of_namespace[namespace] if one.stats is not None]
            + [report_of(one) for one in of_namespace[namespace] if _is_empty(one, cluster)],
            cold_cycles={one: count for one, count in cold_cycles.items() if one.namespace == namespace},
            last_split_at_ms={
                one: at for one, at in inputs.last_split_at_ms.items() if one.namespace == namespace
            },
            in_flight=[one for one in busy if one.namespace == namespace],
        )
        verdicts[namespace] = plan_merges(cycle, MergeSettings(thresholds=policy.thresholds))
    return verdicts


def _is_empty(bundle: Bundle, cluster: Cluster) -> bool:
    """Nobody serves it, and every broker was heard: it has no topic in use. Else its silence says nothing."""
    everybody_reports = len(cluster.reporting) == len(cluster.brokers)
    return bundle.stats is None and bundle.owner is None and everybody_reports
