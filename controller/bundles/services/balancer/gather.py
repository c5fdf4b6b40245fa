"""Reads the inputs of a cycle: load, boundaries, policies, state, live proposals, and the placement rules of the cluster.

The rules are read from the cluster first (`ask_rules`), then the stored inputs in one transaction, and the files last, so that no
transaction waits for a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from controller.bundles.broker_reports import ReportArea
from controller.bundles.domain.balancing.balance import BalanceInputs, PendingMove
from controller.bundles.domain.balancing.moves import BalanceState, Move, MoveReason
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Broker, BrokerReport, Bundle, Cluster
from controller.bundles.domain.cycle import CycleInputs, CycleState
from controller.bundles.domain.cycle_text import state_from_json
from controller.bundles.domain.load import RESOURCES, BrokerResources, BundleStats, ResourceUsage
from controller.bundles.domain.merging import MergeVerdict, look_for_merges
from controller.bundles.domain.placement_rules import SILENT_TICKS, PlacementRules, ruled, with_active_brokers
from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import BundleTopic
from controller.bundles.domain.splitting.policy import SplitPolicy, read_stored
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import loads as bundle_loads
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.cycles import StateRow
from controller.bundles.store.namespaces import BalancingMode, NamespaceRow
from controller.bundles.store.proposals import STALE_AFTER_SECONDS, ProposalKind, ProposalRow, ProposalState
from controller.clock import to_ms
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store

_TICKS_WITHIN_MS = 86_400_000  # older ticks do not show which brokers are silent now


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Inputs of a cycle, the state on which they are based (after the new reports were added), and the mode of each namespace.

    `state_version`: version of the stored state, for compare-and-set. `is_new` is True in the first cycle, and if
    reports were aggregated since the previous cycle. `unreadable` holds, by namespace, the reason for which split
    settings cannot be read; such a namespace is not split.
    """

    inputs: CycleInputs
    state: CycleState
    state_version: int
    modes: Mapping[str, BalancingMode]
    is_new: bool
    unreadable: Mapping[str, str]


def gather(
    store: Store,
    cluster_name: str,
    settings: BalanceSettings,
    files: tuple[ReportArea, PlacementRules] | None = None,
) -> Snapshot:
    """Return the inputs of a cycle: read the stored inputs in one transaction, then the files. Writes nothing. The state in the result
    already contains the reports that were aggregated since the previous cycle.

    Moves exclude namespaces in dry run, unless every namespace is in dry run; the bundles still count as load. `files` is the area of
    reports and the placement rules of the cluster, which are applied, so that brokers that are silent now have no report. Without them,
    no topics are known, and every broker that has reported counts as active. This suits callers that neither split nor place bundles.
    Raises StoreUnavailable, InvalidInput if the stored state cannot be read, and, with `files`, OSError or ArrowException of pyarrow if the
    storage does not answer or a file cannot be read.
    """
    with store.transaction() as tx:
        stored = _read(tx, cluster_name, settings)
    before = state_from_json(stored.state.state)
    state = before.sampled(stored.cluster, stored.sampled_at)
    ruled_cluster, topics = stored.cluster, {}
    if files is not None:
        now_ms = stored.now_ms
        area, rules = files
        reporting = area.heard(cluster_name, now_ms - _TICKS_WITHIN_MS, now_ms, ticks=SILENT_TICKS)
        ruled_cluster = ruled(with_active_brokers(stored.cluster, rules.active, reporting), rules)
        topics = _topics(area, cluster_name, stored.sampled_at, {b.bundle_id for b in ruled_cluster.bundles})
    loaded = (replace(b, load=state.averages.get(b.bundle_id)) for b in ruled_cluster.bundles)
    cluster = replace(ruled_cluster, bundles=tuple(loaded))
    modes = {row.namespace: row.mode for row in stored.namespaces}
    policies, unreadable = _policies(stored.namespaces)
    inputs = CycleInputs(
        balance=BalanceInputs(
            cluster=cluster,
            settings=_without_dry_run(settings, modes),
            state=_after_acts(state.balance, stored.remembered),
            now_ms=stored.now_ms,
            pending=_pending(cluster, stored.done, stored.under_way),
        ),
        policies=policies,
        topics=topics,
        busy=frozenset(str(row.bundle) for row in stored.under_way),
        awaited_bundles=_awaited(stored.under_way, stored.namespaces),
        hit_counts=state.hit_counts,
        last_split_at_ms=state.last_split_at_ms,
    )
    is_new = before.sampled_at is None or stored.sampled_at > before.sampled_at
    return Snapshot(inputs, state, stored.state.row_version, modes, is_new, unreadable)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Stored inputs, as of one transaction at `now_ms`. `sampled_at` is the end of the last aggregated window in milliseconds, 0 before the
    first.

    `remembered` holds the applied unloads that a rule still uses, `done` the unloads applied within the time that a proposal may wait; both
    by time, verified ones included. `under_way` holds the proposals that wait for an approval, are approved, or are applied and not
    verified, without stale ones.
    """

    now_ms: int
    sampled_at: int
    namespaces: list[NamespaceRow]
    state: StateRow
    cluster: Cluster
    remembered: list[ProposalRow]
    done: list[ProposalRow]
    under_way: list[ProposalRow]


def _read(tx: Connection, cluster: str, settings: BalanceSettings) -> _Stored:
    """Read the stored inputs of the cluster in the transaction. `settings` say how long an applied unload is remembered."""
    watermark = bundle_loads.watermark(tx)
    namespaces = bundle_namespaces.list_namespaces(tx, cluster)
    remembered = max(settings.grace_seconds, settings.transfer_delay_seconds, settings.even_settle_seconds)
    return _Stored(
        now_ms=to_ms(database_now(tx)),
        sampled_at=0 if watermark is None else to_ms(watermark),
        namespaces=namespaces,
        state=bundle_cycles.get_state(tx, cluster),
        cluster=_cluster(tx, cluster, namespaces),
        remembered=bundle_proposals.applied_within(tx, cluster, ProposalKind.UNLOAD, remembered),
        done=bundle_proposals.applied_within(tx, cluster, ProposalKind.UNLOAD, STALE_AFTER_SECONDS),
        under_way=bundle_proposals.under_way(tx, cluster),
    )


def _cluster(tx: Connection, cluster: str, namespaces: list[NamespaceRow]) -> Cluster:
    """Return all bundles in the stored boundaries and all brokers, as last aggregated, without averages and placement rules. A bundle that
    was never reported has no owner and no figures. Every broker has a report.
    """
    loads = {
        (row["namespace"], row["lower_bound"], row["upper_bound"]): row
        for row in bundle_loads.bundles_of(tx, cluster)
    }
    bundles = []
    for row in namespaces:
        for bundle in row.bundles.bundles:
            load = loads.get((bundle.namespace, bundle.lower, bundle.upper))
            owner, stats = (None, None) if load is None else (load["broker"], _stats(load))
            bundles.append(Bundle(str(bundle), owner, stats))
    brokers = [_broker(row) for row in bundle_loads.brokers_of(tx, cluster)]
    return Cluster(tuple(brokers), tuple(bundles))


def _stats(row: Mapping[str, Any]) -> BundleStats:
    return BundleStats(
        row["msg_rate_in"],
        row["msg_rate_out"],
        row["byte_rate_in"],
        row["byte_rate_out"],
        row["topic_count"],
        row["producer_count"],
        row["consumer_count"],
        row.get("cache_size_bytes", 0),
    )


def _broker(row: Mapping[str, Any]) -> Broker:
    usages = {name: ResourceUsage(row[f"{name}_usage"], row[f"{name}_limit"]) for name in RESOURCES}
    report = BrokerReport(BrokerResources(**usages), _stats(row), to_ms(row["observed_at"]))
    return Broker(row["broker"], report)


def _without_dry_run(settings: BalanceSettings, modes: Mapping[str, BalancingMode]) -> BalanceSettings:
    """Return settings that also exclude the namespaces in dry run from moves. If all are in dry run, the settings are returned unchanged,
    so that moves are shown.
    """
    resting = {name for name, mode in modes.items() if mode is BalancingMode.DRY_RUN}
    if len(resting) == len(modes):
        return settings
    excluded = {name.strip() for name in settings.excluded_namespaces.split(",") if name.strip()} | resting
    return replace(settings, excluded_namespaces=",".join(sorted(excluded)))


def _after_acts(state: BalanceState, unloads: list[ProposalRow]) -> BalanceState:
    """Return the state after these applied unloads, which are in the order of time: the state has the instant of each
    unload for the bundle and both brokers, and no plan for the bundle. Unloads without a source or a time of
    application are ignored. Idempotent.
    """
    for row in unloads:
        if row.broker is not None and row.applied_at is not None:
            move = Move(str(row.bundle), row.broker, row.destination, 0.0, "byte_rate", MoveReason.OVERLOADED)
            state = state.after([move], to_ms(row.applied_at))
    return state


def _pending(
    cluster: Cluster, done: list[ProposalRow], under_way: list[ProposalRow]
) -> tuple[PendingMove, ...]:
    """Return the unloads with a destination that are not visible yet, by bundle id: those in `under_way`, and applied ones (`done`) until
    they are verified and their source broker has reported afterwards.

    An unload whose bundle is unknown or no longer owned by its source is left out, and so is an unload in `done` whose bundle has a
    proposal in `under_way`, which counts instead.
    """
    moves = []
    for row in {str(row.bundle): row for row in (*done, *under_way)}.values():
        bundle = cluster.bundle_by_id.get(str(row.bundle))
        if row.broker is None or row.destination is None or bundle is None or bundle.owner != row.broker:
            continue
        report = cluster.report_of.get(row.broker)
        is_seen = row.applied_at is not None and report and report.reported_at >= to_ms(row.applied_at)
        if row.state is not ProposalState.VERIFIED or not is_seen:
            moves.append(PendingMove(str(row.bundle), row.broker, row.destination))
    return tuple(sorted(moves))


def _awaited(under_way: list[ProposalRow], namespaces: list[NamespaceRow]) -> dict[str, int]:
    """Return, by namespace, the number of bundles that the splits in `under_way` will add: the cut points that are
    not yet boundaries of the namespace. Namespaces to which no bundle will be added are left out.
    """
    edges = {row.namespace: frozenset(row.boundaries) for row in namespaces}
    gained: Counter[str] = Counter()
    for row in under_way:
        if row.kind is ProposalKind.SPLIT:
            gained[row.namespace] += len(set(row.cut_points) - edges.get(row.namespace, frozenset()))
    return {namespace: count for namespace, count in sorted(gained.items()) if count}


def _policies(namespaces: list[NamespaceRow]) -> tuple[dict[str, SplitPolicy], dict[str, str]]:
    """Return the split policies by namespace, and by namespace the reasons for which its settings cannot be read. Each namespace is in
    one of them. Only the namespaces with a policy are split.
    """
    policies, unreadable = {}, {}
    for row in namespaces:
        policy, why = read_stored(row.split_settings)
        if why is None:
            policies[row.namespace] = policy
        else:
            unreadable[row.namespace] = why
    return policies, unreadable


def _topics(
    area: ReportArea, cluster: str, sampled_at: int, bundles: set[str]
) -> dict[str, tuple[BundleTopic, ...]]:
    """Return the stored topics of the given bundles (by text id), sorted by name. The aggregation stores all topics of the bundles that
    were hot in the window that ended at `sampled_at` (milliseconds; 0: no window yet). Empty if that window has none; a bundle without
    stored topics is left out.

    A bundle has the topics stored for the bundle with its lower boundary, without those outside its present range. A topic that several
    reports name counts once, as its newest report has it.
    """
    table = area.hot_topics(sampled_at) if sampled_at else None
    if table is None:
        return {}
    ranges = {(b.namespace, b.lower): b for b in map(NamespaceBundle.parse, sorted(bundles))}
    of_bundles: dict[str, dict[str, tuple[tuple[int, str], BundleTopic]]] = {}
    for row in table.to_pylist():
        bundle = ranges.get((row["namespace"], row["lower_bound"]))
        if row["cluster"] != cluster or bundle is None or not bundle.contains(row["hash"]):
            continue
        reported = (row["instant_ms"], row["broker"])
        topic = BundleTopic(row["topic"], row["hash"], _stats(row | {"topic_count": 1}))
        topics = of_bundles.setdefault(str(bundle), {})
        if topic.name not in topics or reported > topics[topic.name][0]:
            topics[topic.name] = (reported, topic)
    return {
        bundle: tuple(topic for _, topic in sorted(topics.values(), key=lambda entry: entry[1].name))
        for bundle, topics in of_bundles.items()
    }


def merges(store: Store, *, cluster: str, settings: BalanceSettings) -> dict[str, MergeVerdict]:
    """Return the merge verdict on each namespace of the cluster that has bundles and a readable split policy, by name and by the stored
    load. Merges are only shown, never performed. Raises StoreUnavailable, and InvalidInput if the stored state of balancing cannot be read.

    Each cycle makes the same check and counts for how many cycles a bundle has been cold. This query does not change the counts.
    """
    snapshot = gather(store, cluster, settings)
    return look_for_merges(snapshot.inputs, snapshot.state.cold_cycles)
