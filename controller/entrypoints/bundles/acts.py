"""What `cleave bundles` and the tasks of its DAGs have in common: rows to show, consent, and the picture.

Reads the cluster, the store's views and the pure rules; performs nothing itself, that is `BundleActs`' and the
balancer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from controller.bundles.bootstrap import Bundles
from controller.bundles.domain.merging import MergeVerdict
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.ring.topic_name import namespace_of
from controller.bundles.domain.splitting.algorithms.base import SplitPlan
from controller.bundles.services.balancer import ActReport
from controller.bundles.services.collector import BundleCollector
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.proposals import ProposalKind, ProposalState
from controller.domain.errors import DataPlaneUnavailable, NotFound
from controller.entrypoints.bundles.picture import Arc, Ring, write_rings
from controller.entrypoints.output import rows_table
from controller.store.postgres import inspection
from controller.store.postgres.engine import Store

Rows = list[dict[str, Any]]

_SHOW = """
    SELECT namespace, bundle, broker, mode, topic_count, round((msg_rate_in + msg_rate_out)::numeric, 1) AS msg_rate,
           round((byte_rate_in + byte_rate_out)::numeric, 0) AS byte_rate, share_of_namespace, can_split, observed_at,
           lower_bound, upper_bound
      FROM inspect.bundles_now
     WHERE cluster = :cluster AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
     ORDER BY namespace, lower_bound LIMIT :limit
"""
_PROPOSED = """
    SELECT proposal_id, kind, namespace || '/' || bundle AS bundle, broker, destination, cut_points, reason, state, mode, outcome
      FROM inspect.bundles_proposals WHERE cluster = :cluster AND cycle_id = :cycle_id ORDER BY proposal_id
"""
_WHY_NOT = """
    SELECT namespace, bundle, broker, rule, reason, value, needed FROM inspect.bundles_why_not
     WHERE cluster = :cluster AND cycle_id = :cycle_id AND proposal_id IS NULL ORDER BY namespace, bundle, broker, rule
"""


def one_tick(collector: BundleCollector) -> dict[str, Any]:
    """Read every broker once and land the reports. Raises DataPlaneUnavailable where nobody answered."""
    tick = collector.tick()
    if tick.path is None:
        raise DataPlaneUnavailable(f"no broker of the cluster answered ({', '.join(tick.silent)}); try again")
    return {**asdict(tick), "silent": list(tick.silent)}


def part_rows(plan: SplitPlan) -> Rows:
    """One row a part."""
    return [
        {
            "part": part.bundle.range_text,
            "topics": part.topic_count,
            "msg_rate": round(part.msg_rate, 1),
            "byte_rate": round(part.byte_rate),
        }
        for part in plan.parts
    ]


def shown(bundles: Bundles, namespace: str | None, limit: int) -> Rows:
    """Bundles with owner and load, as last aggregated. Raises NotFound for a namespace without any."""
    with bundles.store.transaction() as tx:
        rows = inspection.rows(tx, _SHOW, cluster=bundles.cluster, namespace=namespace, limit=limit)
    if namespace is not None and not rows:
        raise unknown_namespace(namespace)
    return rows


def of_cycle(bundles: Bundles, cycle_id: int) -> tuple[Rows, Rows]:
    """What a cycle proposed, and what it left alone with the reason."""
    with bundles.store.transaction() as tx:
        key = {"cluster": bundles.cluster, "cycle_id": cycle_id}
        return inspection.rows(tx, _PROPOSED, **key), inspection.rows(tx, _WHY_NOT, **key)


def cycle_tables(cycle_id: int, proposals: Rows, why_not: Rows) -> RenderableType:
    """Both as tables."""
    columns = (
        "proposal_id",
        "kind",
        "bundle",
        "broker",
        "destination",
        "cut_points",
        "reason",
        "state",
        "mode",
    )
    return Group(
        rows_table(proposals, columns, title=f"cycle {cycle_id} proposes"),
        rows_table(
            why_not,
            ("namespace", "bundle", "broker", "rule", "reason", "value", "needed"),
            title="why not more",
        ),
    )


def merge_answers(found: Mapping[str, MergeVerdict]) -> tuple[Rows, RenderableType]:
    """For each namespace what could be joined, what it takes, and why the other cold bundles stay apart."""
    document: Rows = []
    tables: list[RenderableType] = []
    for namespace, verdict in found.items():
        plan = verdict.plan
        joined = [
            {
                "merged": one.merged.range_text,
                "of": len(one.members),
                "byte_rate": round(one.latest.byte_rate),
            }
            for one in (plan.merges if plan else ())
        ]
        steps = [{"step": str(one.act), "what": one.sentence} for one in (plan.steps if plan else ())]
        apart = [
            {
                "bundle": one.bundle.range_text,
                "reason": str(one.reason),
                "value": one.value,
                "needed": one.needed,
            }
            for one in verdict.refusals
        ]
        document.append({"namespace": namespace, "merges": joined, "steps": steps, "apart": apart})
        tables.append(rows_table(joined, ("merged", "of", "byte_rate"), title=f"{namespace} could have"))
        tables.append(rows_table(steps, ("step", "what"), title="an operator would") if steps else "")
        tables.append(rows_table(apart, ("bundle", "reason", "value", "needed"), title="stays apart"))
    return document, Group(*tables)


def require_cycle(bundles: Bundles, cycle_id: int) -> None:
    """Raises NotFound for a cycle that this cluster never had."""
    with bundles.store.transaction() as tx:
        found = bundle_cycles.get_cycle(tx, cycle_id)
    if found.cluster != bundles.cluster:
        raise NotFound(
            f"cycle {cycle_id} is of cluster {found.cluster}, not of {bundles.cluster}; name one of its own"
        )


def waiting(bundles: Bundles, cycle_id: int | None) -> Rows:
    """What an application would carry out: approved acts, and a cycle's own where its namespaces are automatic."""
    with bundles.store.transaction() as tx:
        approved = bundle_proposals.list_proposals(tx, bundles.cluster, states=[ProposalState.APPROVED])
        own = (
            []
            if cycle_id is None
            else bundle_proposals.list_proposals(
                tx, bundles.cluster, cycle_id=cycle_id, states=[ProposalState.PROPOSED]
            )
        )
        modes = {row.namespace: row.mode for row in bundle_namespaces.list_namespaces(tx, bundles.cluster)}
    automatic = bundle_namespaces.BalancingMode.AUTOMATIC
    chosen = [*approved, *(row for row in own if modes.get(row.namespace) is automatic)]
    return [
        {
            "proposal_id": row.proposal_id,
            "kind": row.kind.value,
            "bundle": str(row.bundle),
            "destination": row.destination,
            "reason": row.reason,
        }
        for row in chosen
        if row.kind is not ProposalKind.MERGE
    ]


def settle(store: Store, proposal_ids: Sequence[int], refuse: str | None, actor: str) -> Rows:
    """Approve proposals, or refuse them for a reason; all or none."""
    rows: Rows = []
    with store.transaction() as tx:
        for proposal_id in proposal_ids:
            seen = bundle_proposals.get_proposal(tx, proposal_id).row_version
            if refuse is None:
                row = bundle_proposals.approve(tx, proposal_id, actor=actor, seen_row_version=seen)
            else:
                row = bundle_proposals.refuse(tx, proposal_id, refuse, actor=actor, seen_row_version=seen)
            rows.append({"proposal_id": proposal_id, "bundle": str(row.bundle), "state": row.state.value})
    return rows


def report_row(one: ActReport) -> dict[str, Any]:
    """What came of one act, as plain values."""
    return {**asdict(one), "kind": one.kind.value, "state": one.state.value}


def known_bundle(store: Store, cluster: str, topic: str) -> str | None:
    """The bundle of a topic by the boundaries that are stored; None where the namespace is not known."""
    try:
        with store.transaction() as tx:
            row = bundle_namespaces.get_namespace(tx, cluster, namespace_of(topic))
    except NotFound:
        return None
    return str(row.bundles.bundle_of(topic))


def unknown_namespace(namespace: str) -> NotFound:
    """What to say of one whose bundles were never aggregated."""
    return NotFound(f"no bundles of namespace {namespace} are known; collect and aggregate its reports first")


def draw(bundles: Bundles, namespace: str, path: Path) -> None:
    """The ring as it is, and as the newest cycle's live proposals would make it."""
    rows = shown(bundles, namespace, 100_000)
    arcs = [
        Arc(
            NamespaceBundle(namespace, row["lower_bound"], row["upper_bound"]),
            row["broker"] or "nobody",
            float(row["byte_rate"] or 0),
        )
        for row in rows
    ]
    with bundles.store.transaction() as tx:
        live = (ProposalState.PROPOSED, ProposalState.APPROVED, ProposalState.APPLIED)
        proposals = bundle_proposals.list_proposals(tx, bundles.cluster, states=live)
    mine = [one for one in proposals if one.namespace == namespace]
    rings = [Ring("now", arcs)]
    if mine:
        rings.append(Ring("with what is proposed", after(arcs, mine)))
    write_rings(path, f"Bundles of {namespace}", rings)


def after(arcs: Sequence[Arc], proposals: Sequence[bundle_proposals.ProposalRow]) -> list[Arc]:
    """The arcs once the proposals are done; a split shares the load out by width, since topics are not known here."""
    moved: Mapping[str, str] = {
        str(one.bundle): one.destination or "nobody" for one in proposals if one.kind is ProposalKind.UNLOAD
    }
    cut = {str(one.bundle): one.cut_points for one in proposals if one.kind is ProposalKind.SPLIT}
    return [
        Arc(part, moved.get(str(arc.bundle), arc.broker), arc.byte_rate * part.width / arc.bundle.width)
        for arc in arcs
        for part in arc.bundle.parts(cut.get(str(arc.bundle), ()))
    ]
