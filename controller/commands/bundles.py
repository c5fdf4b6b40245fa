"""`cleave bundles`: show a cluster's bundles, split and move them by hand, propose, approve, apply, replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from controller import telemetry
from controller.actions.fields import fill_in
from controller.bootstrap import application, process_name
from controller.bundles import tables
from controller.bundles.actions.reports import LIST_ACTIVE_BROKERS, SHOW_CYCLE, ListActiveBrokers, ShowCycle
from controller.bundles.bootstrap import Bundles, bundles_of
from controller.bundles.metrics import BundleMetrics
from controller.bundles.questions import LIST_BROKERS
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store import views as bundle_views
from controller.bundles.store.cycles import StoredCycle
from controller.bundles.store.proposals import ProposalState
from controller.command_output import emit, rows_table
from controller.commands.actions import group
from controller.commands.bundle_picture import draw_namespace
from controller.commands.metrics_server import exported
from controller.commands.options import AsJson, DryRun
from controller.commands.output_files import demand_writable
from controller.commands.processes import (
    JsonLogs,
    LogLevel,
    LogLevelOption,
    MetricsHost,
    MetricsPort,
    configure_process,
)
from controller.commands.server_choice import ask, perform
from controller.commands.stop_signals import on_stop_signals


def draw(namespace: str, path: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """Draw the ring of a namespace into an HTML file: its bundles now, and after the proposals."""
    demand_writable(path)
    live = (ProposalState.PROPOSED, ProposalState.APPROVED, ProposalState.APPLIED)
    with cluster() as bundles, bundles.store.transaction() as tx:
        rows = bundle_views.bundles_now(tx, bundles.cluster, namespace)
        proposals = bundle_proposals.list_proposals(tx, bundles.cluster, states=live)
    draw_namespace(path, namespace, rows, proposals)


def brokers(as_json: AsJson = False) -> None:
    """List brokers by usage at the last aggregation, and whether each is active in the cluster."""
    answer = perform(LIST_ACTIVE_BROKERS, ListActiveBrokers())
    rows = list(ask(LIST_BROKERS, {"cluster": answer.cluster}, limit=None))
    fullest = sorted(rows, key=lambda row: (row["usage"] is None, -(row["usage"] or 0), row["broker"]))
    document, table = tables.broker_table(fullest, answer.brokers)
    emit(as_json, document, table)


@contextmanager
def cluster() -> Iterator[Bundles]:
    """Open the services of the Pulsar cluster that the settings name, and close them at the end of the block. Raises InvalidInput if the
    settings name no cluster or are invalid.
    """
    with application() as cleave, bundles_of(cleave) as bundles:
        yield bundles


def collect(
    interval_seconds: Annotated[float, typer.Option(min=1.0)] = 30.0,
    once: Annotated[bool, typer.Option(help="One tick, then end.")] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    json_logs: JsonLogs = False,
    log_level: LogLevelOption = LogLevel.INFO,
    as_json: AsJson = False,
) -> None:
    """Write load reports of every broker to the report area until SIGTERM."""
    configure_process(metrics_host, metrics_port, json_logs, log_level)
    with (
        cluster() as bundles,
        exported(BundleMetrics(bundles.store, bundles.cluster)) if metrics_port else nullcontext(),
    ):
        collector = bundles.collector(interval_seconds)
        if once:
            tick = collector.tick_once().document()
            emit(as_json, tick, rows_table([tick]))
        else:
            on_stop_signals(collector.stop)
            with telemetry.bound(collector=collector.name):
                collector.run()


def aggregate(as_json: AsJson = False) -> None:
    """Compute the load of the last window from reports with Spark, and store it."""
    with cluster() as bundles:
        document = asdict(bundles.aggregate(f"cli-{process_name()}"))
    emit(as_json, document, rows_table([document]))


def propose(as_json: AsJson = False) -> None:
    """Decide one cycle: which bundles to split or move, and where. Changes no broker."""
    with cluster() as bundles:
        cycle = bundles.propose(f"cli-{process_name()}", process_name())
        with bundles.store.transaction() as tx:
            rows, why_not = bundle_views.cycle_rows(tx, bundles.cluster, cycle.cycle_id)
    document = {**asdict(cycle), "proposals": rows, "why_not": why_not}
    emit(as_json, document, tables.cycle_tables(cycle.cycle_id, rows, why_not))


def apply(
    cycle: Annotated[
        int | None, typer.Option(help="Also apply the proposals of this cycle in automatic namespaces.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Apply approved proposals, and verify applied ones on the brokers."""
    from controller.bundles.services import balancer

    with cluster() as bundles:
        if cycle is not None:
            balancer.require_cycle(bundles.store, cluster=bundles.cluster, cycle_id=cycle)
        if dry_run:
            rows = [tables.waiting_row(row) for row in bundles.waiting(cycle)]
        else:
            reports = bundles.apply(cycle, process_name())
            rows = [tables.act_row(report) for report in (*reports, *bundles.verify(process_name()))]
    emit(as_json, rows, rows_table(rows, title="would be applied" if dry_run else "applied and verified"))


def replay(cycle_id: Annotated[int, typer.Argument(metavar="CYCLE")], as_json: AsJson = False) -> None:
    """Decide a stored cycle again from its inputs. Exit with 1 if the result differs."""
    from controller.bundles.services import balancer

    cycle = perform(SHOW_CYCLE, fill_in(ShowCycle, {"cycle_id": cycle_id}))
    stored = StoredCycle(**cycle.model_dump())
    document = asdict(balancer.replay(stored))
    emit(as_json, document, rows_table([document]))
    if not document["is_same"]:
        raise typer.Exit(1)


app = group("bundles", draw, brokers, collect, aggregate, propose, apply, replay)
