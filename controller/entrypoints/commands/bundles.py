"""`cleave bundles`: show a cluster's bundles, split and move them by hand, propose, approve, apply, replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from prometheus_client import REGISTRY

from controller import telemetry
from controller.bootstrap import process_name
from controller.bundles.actions.namespaces import SplitPolicyResponse
from controller.bundles.bootstrap import Bundles
from controller.bundles.domain.ring.hashes import edge_text, topic_hash
from controller.bundles.domain.ring.topic_name import canonical_topic_name, checked_namespace, namespace_of
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store import views as bundle_views
from controller.bundles.store.proposals import ProposalState
from controller.domain.errors import InvalidInput, StoreUnavailable
from controller.entrypoints.bundles import rows as bundle_rows
from controller.entrypoints.bundles.metrics import BundleMetrics
from controller.entrypoints.bundles.picture import draw_namespace
from controller.entrypoints.commands.actions import add_actions
from controller.entrypoints.commands.options import AsJson, DryRun, Limit
from controller.entrypoints.commands.processes import JsonLogs, MetricsHost, MetricsPort, tell
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.reach.chosen import control_plane
from controller.entrypoints.reach.direct.bundles import cluster
from controller.entrypoints.reach.verbs import demand_database
from controller.entrypoints.stop_signals import on_stop_signals

app = typer.Typer(no_args_is_help=True)
Namespace = Annotated[str | None, typer.Argument(help="tenant/namespace; all of them if not given.")]


@app.command()
def show(
    namespace: Namespace = None,
    html: Annotated[Path | None, typer.Option(help="Draw the ring of one namespace into this file.")] = None,
    limit: Limit = 1000,
    as_json: AsJson = False,
) -> None:
    """Bundles with their owners and load, as last aggregated; with --html also as a picture with what is proposed."""
    if html is not None:
        demand_database("bundles show --html")
    with control_plane() as cleave:
        found = cleave.bundles.list(namespace, limit)
    rows = found.rows
    if html is not None:
        with cluster() as bundles:
            _draw(bundles, namespace, html)
    shown = (
        "namespace",
        "bundle",
        "broker",
        "mode",
        "topic_count",
        "msg_rate",
        "byte_rate",
        "share_of_namespace",
    )
    title = f"bundles of cluster {found.cluster}"
    if len(rows) < found.known:
        title += f": the first {len(rows)} of {found.known}; name a namespace, or give --limit"
    emit(as_json, rows, rows_table(rows, shown, title=title))


@app.command()
def brokers(as_json: AsJson = False) -> None:
    """Brokers by usage, as last aggregated, and whether each is on the cluster's list of active ones now."""
    with control_plane() as cleave:
        found = cleave.bundles.brokers()
    document, table = bundle_rows.broker_table(found.rows, found.active)
    emit(as_json, document, table)


@app.command()
def proposals(
    namespace: Namespace = None,
    state: Annotated[list[ProposalState] | None, typer.Option(help="Only these; repeatable.")] = None,
    cycle: Annotated[int | None, typer.Option(help="Only those of this cycle.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """What was proposed, why, and how far each has come; the newest first."""
    states = [one.value for one in state or ()]
    with control_plane() as cleave:
        rows = cleave.bundles.proposals(namespace=namespace, states=states, cycle_id=cycle, limit=limit)
    emit(as_json, rows, bundle_rows.proposal_table(list(rows), limit))


def _draw(bundles: Bundles, namespace: str | None, path: Path) -> None:
    if namespace is None:
        raise InvalidInput("a picture is of one namespace; name it")
    live = (ProposalState.PROPOSED, ProposalState.APPROVED, ProposalState.APPLIED)
    with bundles.store.transaction() as tx:
        rows = bundle_views.bundles_now(tx, bundles.cluster, namespace)
        open_ones = bundle_proposals.list_proposals(tx, bundles.cluster, states=live)
    draw_namespace(path, namespace, rows, open_ones)


@app.command("hash")
def hash_of(topic: str, as_json: AsJson = False) -> None:
    """Where a topic lies: its complete name, its hash, and its bundle if the namespace is known."""
    name = canonical_topic_name(topic)
    document: dict[str, Any] = {"topic": name, "hash": edge_text(topic_hash(name))}
    with control_plane() as cleave, suppress(StoreUnavailable):  # the hash needs nobody
        document["bundle"] = cleave.bundles.bundle_of(name)
    document["namespace"] = namespace_of(name)
    emit(as_json, document, rows_table([document]))


@contextmanager
def _gauges(bundles: Bundles) -> Iterator[None]:
    """What is stored of the cluster's balancing, among the metrics of this process."""
    metrics = BundleMetrics(bundles.store, bundles.cluster)
    REGISTRY.register(metrics)
    try:
        yield
    finally:
        REGISTRY.unregister(metrics)


@app.command()
def collect(
    interval_seconds: Annotated[float, typer.Option(min=1.0)] = 30.0,
    once: Annotated[bool, typer.Option(help="One tick, then end.")] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    json_logs: JsonLogs = False,
    as_json: AsJson = False,
) -> None:
    """Read every broker's load into the area of reports, again and again."""
    tell(metrics_host, metrics_port, json_logs)
    with cluster() as bundles, _gauges(bundles) if metrics_port else nullcontext():
        collector = bundles.collector(interval_seconds)
        if once:
            tick = bundle_rows.tick_row(collector.tick_once())
            emit(as_json, tick, rows_table([tick]))
        else:
            on_stop_signals(collector.stop)
            with telemetry.bound(collector=collector.name):
                collector.run()


@app.command()
def aggregate(as_json: AsJson = False) -> None:
    """Compute the load of the last window on Spark, from reports to tables."""
    with cluster() as bundles:
        document = asdict(bundles.aggregate(f"cli-{process_name()}"))
    emit(as_json, document, rows_table([document]))


@app.command()
def propose(as_json: AsJson = False) -> None:
    """Decide one cycle: which bundles to split and where, which to move and where to. Nothing is done to any broker."""
    with cluster() as bundles:
        cycle = bundles.propose(f"cli-{process_name()}", process_name())
        with bundles.store.transaction() as tx:
            rows, why_not = bundle_views.cycle_rows(tx, bundles.cluster, cycle.cycle_id)
    document = {**asdict(cycle), "proposals": rows, "why_not": why_not}
    emit(as_json, document, bundle_rows.cycle_tables(cycle.cycle_id, rows, why_not))


@app.command()
def apply(
    cycle: Annotated[
        int | None, typer.Option(help="Also what this cycle proposed in automatic namespaces.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Carry out what is approved, and check whether what was done before holds."""
    from controller.bundles.services import balancer

    with cluster() as bundles:
        if cycle is not None:
            balancer.require_cycle(bundles.store, cluster=bundles.cluster, cycle_id=cycle)
        if dry_run:
            rows = [bundle_rows.waiting_row(row) for row in bundles.waiting(cycle)]
        else:
            reports = bundles.apply(cycle, process_name())
            rows = [bundle_rows.act_row(one) for one in (*reports, *bundles.verify(process_name()))]
    emit(as_json, rows, rows_table(rows, title="would be applied" if dry_run else "applied and verified"))


@app.command()
def replay(cycle_id: Annotated[int, typer.Argument(metavar="CYCLE")], as_json: AsJson = False) -> None:
    """Decide a stored cycle again from its own inputs. Ends with 1 if the answer differs."""
    from controller.bundles.services import balancer

    with control_plane() as cleave:
        stored = cleave.bundles.cycle(cycle_id)
    found = asdict(balancer.replay(stored))
    emit(as_json, found, rows_table([found]))
    if not found["is_same"]:
        raise typer.Exit(1)


@app.command()
def merges(namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Cold neighbours that could be one bundle, with the steps for an operator: Pulsar cannot merge."""
    with control_plane() as cleave:
        document = cleave.bundles.merges(namespace)
    emit(as_json, document, bundle_rows.merge_tables(document))


@app.command()
def policy(namespace: str, as_json: AsJson = False) -> None:
    """When and how a namespace's bundles are split: every knob in force, and where its value comes from."""
    with control_plane() as cleave:
        document = asdict(cleave.bundles.split_policy(checked_namespace(namespace)))
    rows = SplitPolicyResponse(**document).rows()
    emit(as_json, document, rows_table(rows, title=namespace))


add_actions(app, "bundles")
