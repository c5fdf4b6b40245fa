"""Reads what one cycle is decided on: load, boundaries, policies, state, acts under way, and what the cluster says.

First the cluster is asked (`placement_rules`). Then what is stored is read in one transaction, and files after it, so
that no transaction waits for a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from controller.bundles.domain.balancing.balance import BalanceInputs
from controller.bundles.domain.balancing.moves import Move, MoveReason
from controller.bundles.domain.balancing.pending import PendingMove
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.state import BalanceState
from controller.bundles.domain.cluster import Broker, BrokerReport, Bundle, Cluster
from controller.bundles.domain.cycle import CycleInputs, CycleState
from controller.bundles.domain.cycle_text import state_from_json
from controller.bundles.domain.load.resources import RESOURCES, BrokerResources, ResourceUsage
from controller.bundles.domain.load.stats import BundleStats
from controller.bundles.domain.placement_rules import SILENT_TICKS, PlacementRules, ruled
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import BundleTopic
from controller.bundles.domain.splitting.policy import SplitPolicy, read_stored
from controller.bundles.reports import ReportArea
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import loads as bundle_loads
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.cycles import StateRow
from controller.bundles.store.namespaces import BalancingMode, NamespaceRow
from controller.bundles.store.proposals import PATIENCE_SECONDS, ProposalKind, ProposalRow, ProposalState
from controller.clock import to_ms
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store

_TICKS_WITHIN_MS = 86_400_000  # older ticks say nothing about who is silent now


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The inputs of a cycle, the state they began with, and how each namespace is balanced.

    `is_new`: reports were aggregated since the cycle before. `unreadable`: why the split settings of a namespace cannot
    be read, by namespace; it is not split.
    """

    inputs: CycleInputs
    state: CycleState
    state_version: int
    modes: Mapping[str, BalancingMode]
    is_new: bool
    unreadable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CycleFiles:
    """What a cycle looks at besides the database: the area of reports, and what the cluster was asked."""

    area: ReportArea
    rules: PlacementRules


def gather(
    store: Store, cluster_name: str, settings: BalanceSettings, files: CycleFiles | None = None
) -> Snapshot:
    """Reads everything. If some namespace is enabled, those in dry run count as load and stay where they are.

    Without `files` no topics are known, and every broker that has reported counts as active: for looks that neither
    split nor place.
    """
    with store.transaction() as tx:
        stored = _read(tx, cluster_name, settings)
    before = state_from_json(stored.state.state)
    state = before.sampled(stored.cluster, stored.sampled_at)
    plain, topics = stored.cluster, {}
    if files is not None:
        now_ms = stored.now_ms
        heard = files.area.heard(cluster_name, now_ms - _TICKS_WITHIN_MS, now_ms, ticks=SILENT_TICKS)
        plain = ruled(plain, files.rules, heard)
        topics = _topics(files.area, cluster_name, stored.sampled_at, {b.bundle_id for b in plain.bundles})
    loaded = (replace(b, load=state.averages.get(b.bundle_id)) for b in plain.bundles)
    cluster = replace(plain, bundles=tuple(loaded))
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
    """What is stored, as of one transaction at `now_ms`. `sampled_at`: the end of the last window aggregated (ms).

    Unloads that were carried out: `remembered` those that some rule still looks at, `done` those within the time that a
    proposal may wait.
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
        done=bundle_proposals.applied_within(tx, cluster, ProposalKind.UNLOAD, PATIENCE_SECONDS),
        under_way=bundle_proposals.under_way(tx, cluster),
    )


def _cluster(tx: Connection, cluster: str, namespaces: list[NamespaceRow]) -> Cluster:
    loads = {
        (row["namespace"], row["lower_bound"], row["upper_bound"]): row
        for row in bundle_loads.bundles_of(tx, cluster)
    }
    bundles = []
    for row in namespaces:
        for one in row.bundles.bundles:
            found = loads.get((one.namespace, one.lower, one.upper))
            owner, stats = (None, None) if found is None else (found["broker"], _stats(found))
            bundles.append(Bundle(str(one), owner, stats))
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
    """Moves are chosen among what may move. If nothing may, they are chosen among everything, to be shown."""
    resting = {name for name, mode in modes.items() if mode is BalancingMode.DRY_RUN}
    if len(resting) == len(modes):
        return settings
    excluded = {name.strip() for name in settings.excluded_namespaces.split(",") if name.strip()} | resting
    return replace(settings, excluded_namespaces=",".join(sorted(excluded)))


def _after_acts(state: BalanceState, unloads: list[ProposalRow]) -> BalanceState:
    """The state with the unloads that were carried out. A repeat changes nothing."""
    for row in unloads:
        if row.broker is not None and row.applied_at is not None:
            move = Move(str(row.bundle), row.broker, row.destination, 0.0, "byte_rate", MoveReason.OVERLOADED)
            state = state.after([move], to_ms(row.applied_at))
    return state


def _pending(
    cluster: Cluster, done: list[ProposalRow], under_way: list[ProposalRow]
) -> tuple[PendingMove, ...]:
    """Unloads that wait or run, and those that are done and of which the last reading does not know yet."""
    found = []
    for row in {str(row.bundle): row for row in (*done, *under_way)}.values():
        bundle = cluster.bundle_by_id.get(str(row.bundle))
        if row.broker is None or row.destination is None or bundle is None or bundle.owner != row.broker:
            continue
        report = cluster.report_of.get(row.broker)
        is_seen = row.applied_at is not None and report and report.reported_at >= to_ms(row.applied_at)
        if row.state is not ProposalState.VERIFIED or not is_seen:
            found.append(PendingMove(str(row.bundle), row.broker, row.destination))
    return tuple(sorted(found))


def _awaited(under_way: list[ProposalRow], namespaces: list[NamespaceRow]) -> dict[str, int]:
    """The bundles that each namespace gains once the splits that wait or run are seen in its boundaries."""
    edges = {row.namespace: frozenset(row.boundaries) for row in namespaces}
    gained: Counter[str] = Counter()
    for row in under_way:
        if row.kind is ProposalKind.SPLIT:
            gained[row.namespace] += len(set(row.cut_points) - edges.get(row.namespace, frozenset()))
    return {namespace: count for namespace, count in sorted(gained.items()) if count}


def _policies(namespaces: list[NamespaceRow]) -> tuple[dict[str, SplitPolicy], dict[str, str]]:
    """The split policies, and why settings cannot be read. Such a namespace is not split; the others are."""
    found, unreadable = {}, {}
    for row in namespaces:
        policy, why = read_stored(row.split_settings)
        if why is None:
            found[row.namespace] = policy
        else:
            unreadable[row.namespace] = why
    return found, unreadable


def _topics(
    area: ReportArea, cluster: str, sampled_at: int, bundles: set[str]
) -> dict[str, tuple[BundleTopic, ...]]:
    """The topics of the bundles that were hot in the last window, each once; none if they are not kept."""
    table = area.hot_topics(sampled_at) if sampled_at else None
    if table is None:
        return {}
    ranges = {(b.namespace, b.lower): b for b in map(NamespaceBundle.parse, sorted(bundles))}
    found: dict[str, dict[str, tuple[tuple[int, str], BundleTopic]]] = {}
    for row in table.to_pylist():
        bundle = ranges.get((row["namespace"], row["lower_bound"]))
        if row["cluster"] != cluster or bundle is None or not bundle.contains(row["hash"]):
            continue
        told = (row["instant_ms"], row["broker"])
        topic = BundleTopic(row["topic"], row["hash"], _stats(row | {"topic_count": 1}))
        known = found.setdefault(str(bundle), {})
        if topic.name not in known or told > known[topic.name][0]:
            known[topic.name] = (told, topic)
    return {
        bundle: tuple(topic for _, topic in sorted(known.values(), key=lambda one: one[1].name))
        for bundle, known in found.items()
    }
