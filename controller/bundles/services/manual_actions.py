"""Checks manual splits and unloads against the cluster.

Both functions return what would be done. A dry run ends there; otherwise `BundleActions` performs the action.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller.bundles.brokers.reader import BundleReader, demand_allowed
from controller.bundles.domain.cluster import Bundle
from controller.bundles.domain.cycle_text import state_from_json
from controller.bundles.domain.load import BundleLoad, BundleStats
from controller.bundles.domain.ring import NamespaceBundle, NamespaceBundles, parse_edge, topic_hash
from controller.bundles.domain.splitting.algorithms.base import (
    BundleTopic,
    CutRefusal,
    SplitOptions,
    SplitPlan,
    SplitRequest,
)
from controller.bundles.domain.splitting.policy import DEFAULT_SPLIT_ALGORITHM, plan_split
from controller.bundles.domain.splitting.thresholds import BUNDLE_CHOICES, chosen_bundle, report_of
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import views as bundle_views
from controller.domain.errors import Conflict, InvalidInput, Unsupported
from controller.domain.pulsar_names import checked_namespace
from controller.store.postgres.engine import Store

_DEFAULT_PARTS: Final = 2
_ALGORITHMS_TAKING: Final[Mapping[str, frozenset[str]]] = {
    "positions": frozenset({"specified_positions_divide"}),
    "topics": frozenset({"isolate_outstanding", "specified_topic_count_equally_divide"}),
    "parts": frozenset({"range_equally_divide", "load_equally_divide"}),
}
"""Algorithms that use an option of a manual split. Other algorithms would silently ignore the option."""


@dataclass(frozen=True, slots=True)
class ManualSplit:
    """A manual split. `bundle` is the text of a bundle, or a namespace followed by /LARGEST or /HOT. `algorithm` None: the other fields
    imply the algorithm. `positions` are hashes such as 0x20000000. `topics`: topics to isolate or to divide by. `parts`: number of parts
    of an even division.
    """

    bundle: str
    algorithm: str | None = None
    positions: Sequence[str] = ()
    topics: Sequence[str] = ()
    parts: int = _DEFAULT_PARTS


def plan_manual_split(
    store: Store, reader: BundleReader, split: ManualSplit, *, allowed: Collection[str]
) -> SplitPlan | CutRefusal:
    """Return the cuts and the load of each part, by the topics that the brokers report now, or the refusal of the algorithm. Sends no
    split. `allowed`: names of the algorithms that may be used.

    Unless an algorithm is named, positions imply specified_positions_divide, also with fewer than two topics; topics imply
    isolate_outstanding, and neither implies range_equally_divide. A bundle that was already cut at exactly these positions is planned again
    over its parts, so that a split may be repeated.

    Raises InvalidInput, also for an option that the algorithm does not use; Unsupported for an algorithm that is not `allowed` or unknown;
    Conflict if the namespace would exceed the maximum number of bundles of its policy; NotFound for an unknown namespace; BundleNotFound
    for a bundle that was split or does not exist, and if no bundle is LARGEST or HOT; Retryable or Terminal if a broker does not answer or
    refuses to answer; and StoreUnavailable.
    """
    name = split.algorithm or _implied_algorithm(split)
    if name not in allowed:
        raise Unsupported(f"split algorithm {name!r} is not allowed here; choose one of {', '.join(allowed)}")
    _demand_options_of(name, split)
    bundle = find_bundle(store, reader.cluster, split.bundle)
    positions = tuple(parse_edge(text) for text in split.positions)
    listed = reader.bundles(bundle.namespace)
    parts = _parts_now(listed, bundle, set(positions))
    topics = [topic for part in parts for topic in topics_in(reader, part)]
    options = SplitOptions(
        positions=positions,
        topics=tuple(split.topics),
        parts=split.parts,
        force=bool(split.positions),
    )
    plan = plan_split(name, SplitRequest(bundle, topics, options))
    if isinstance(plan, SplitPlan):
        _demand_room(store, reader.cluster, listed, plan)
    return plan


def _demand_room(store: Store, cluster: str, listed: NamespaceBundles, plan: SplitPlan) -> None:
    """Raise Conflict if the namespace, with its present boundaries `listed`, would have more than `max_bundles` of its split policy (the
    default policy for a namespace that is not stored) after the split. A repeated split adds no bundle and is always allowed.
    """
    added = len(set(plan.cuts) - set(listed.boundaries))
    with store.transaction() as tx:
        max_bundles = bundle_namespaces.split_policy_of(tx, cluster, listed.namespace).max_bundles
    if added and listed.count + added > max_bundles:
        raise Conflict(
            f"namespace {listed.namespace} has {listed.count} bundles, and {added} more exceed max_bundles = {max_bundles}; "
            f"raise the limit with `cleave bundles set-policy {listed.namespace} max_bundles={listed.count + added}`"
        )


def _implied_algorithm(request: ManualSplit) -> str:
    """Return the algorithm that the options of the split imply. Raises InvalidInput for positions together with topics."""
    if request.positions and request.topics:
        raise InvalidInput("give positions or topics, not both; or name the algorithm")
    if request.positions:
        return "specified_positions_divide"
    return "isolate_outstanding" if request.topics else DEFAULT_SPLIT_ALGORITHM


def _demand_options_of(algorithm: str, request: ManualSplit) -> None:
    """Raise InvalidInput for an option of the split that the algorithm does not use. The default number of `parts` counts as no option."""
    options = {
        "positions": request.positions,
        "topics": request.topics,
        "parts": request.parts != _DEFAULT_PARTS,
    }
    for option, algorithms in _ALGORITHMS_TAKING.items():
        if options[option] and algorithm not in algorithms:
            alternatives = " or ".join(sorted(algorithms))
            raise InvalidInput(
                f"split algorithm {algorithm} takes no {option}; omit {option}, or choose {alternatives}"
            )


def _parts_now(
    listed: NamespaceBundles, bundle: NamespaceBundle, cuts: set[int]
) -> tuple[NamespaceBundle, ...]:
    """Return the bundle, or its parts between the cuts if the namespace has all cuts and the bundle's ends as boundaries, so that the
    split is a repetition. A part that was cut further is not in the namespace. Raises BundleNotFound if the namespace has neither the
    bundle nor these boundaries.
    """
    is_inside = cuts and all(bundle.lower < cut < bundle.upper for cut in cuts)
    if is_inside and {bundle.lower, *cuts, bundle.upper} <= set(listed.boundaries):
        return bundle.parts(cuts)
    return (listed.require(bundle),)


def topics_in(reader: BundleReader, bundle: NamespaceBundle) -> list[BundleTopic]:
    """Return the topics in a bundle with the load that their broker reports now. A topic without a report, which is not in use, has a
    load of 0.

    Reads the hashes of the bundle and the topics of every broker. Raises DataPlaneUnavailable or DataPlaneTimeout, also if only one broker
    does not answer, NotFound or BundleNotFound for an unknown namespace or bundle, and Terminal if a broker refuses to answer.
    """
    topics = dict.fromkeys(reader.topic_hashes(bundle), BundleStats(topic_count=1))
    for broker in reader.brokers():
        for topic in reader.topics(broker):
            if topic.namespace == bundle.namespace and bundle.contains(topic_hash(topic.topic)):
                topics[topic.topic] = topic.stats
    return [BundleTopic.of(name, stats) for name, stats in topics.items()]


def find_bundle(store: Store, cluster: str, text: str) -> NamespaceBundle:
    """Return the bundle that `text` names. The text of a bundle is only parsed, so the bundle need not exist. For a
    namespace followed by /LARGEST or /HOT, return the bundle with the most topics or the most bytes per second, as
    last aggregated; of equal bundles, the first by name. HOT compares the averages of past cycles; for a bundle
    without averages, the latest figures.

    Raises InvalidInput for a text that names no bundle or namespace, NotFound if the namespace was never aggregated,
    BundleNotFound if no bundle of the namespace has topics, and StoreUnavailable.
    """
    namespace, _, choice = text.rpartition("/")
    if choice not in BUNDLE_CHOICES:
        return NamespaceBundle.parse(text)
    checked_namespace(namespace)
    with store.transaction() as tx:
        averages = state_from_json(bundle_cycles.get_state(tx, cluster).state).averages
        rows = bundle_views.bundles_now(tx, cluster, namespace)
    reports = []
    for row in rows:
        name = str(NamespaceBundle(namespace, row["lower_bound"], row["upper_bound"]))
        stats = BundleStats(
            byte_rate_in=float(row["byte_rate"] or 0), topic_count=int(row["topic_count"] or 0)
        )
        load = averages.get(name) or BundleLoad().with_sample(stats)
        reports.append(report_of(Bundle(name, row["broker"], stats, load)))
    return chosen_bundle(choice, reports)


def check_manual_unload(
    store: Store, reader: BundleReader, text: str, destination: str | None
) -> tuple[NamespaceBundle, str | None]:
    """Return the bundle that `text` names (the text of a bundle, or a namespace followed by /LARGEST or /HOT) and its owner, None if no
    broker owns it. Unloads nothing.

    Raises InvalidInput for a text that names no bundle or namespace, and for a destination that is not an active broker or that an
    isolation policy forbids; BundleNotFound for a bundle that the namespace does not have, for example because it was split; NotFound for
    an unknown namespace; DataPlaneUnavailable if a broker that may own the bundle does not answer; Terminal if a broker refuses to answer;
    and StoreUnavailable.
    """
    bundle = find_bundle(store, reader.cluster, text)
    reader.bundles(bundle.namespace).require(bundle)
    if destination is not None:
        demand_allowed(reader, bundle.namespace, destination)
    return bundle, reader.owner(bundle, first=[destination] if destination else [])
