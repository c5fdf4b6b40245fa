"""`cleave worker`, `cleave serve`, `cleave metrics` and `cleave collect`: the processes that run until they are stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from controller import telemetry
from controller.bootstrap import (
    application,
    build_collection,
    build_collector,
    build_consumer_watch,
    build_server,
    build_worker,
)
from controller.commands.metrics_server import exported, serve_metrics
from controller.commands.read_only_store import reading_store
from controller.commands.stop_signals import on_stop_signals
from controller.domain.errors import InvalidInput
from controller.settings import load_settings

JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Write each log line as a JSON object.")]


class LogLevel(StrEnum):
    """Lowest level of log lines that a process writes."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogLevelOption = Annotated[
    LogLevel, typer.Option("--log-level", envvar="CLEAVE_LOG_LEVEL", help="Lowest level of log lines.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=1,
        max=65_535,
        help="Serve Prometheus metrics at this port, and health at /health and /live.",
    ),
]
MetricsHost = Annotated[str, typer.Option("--metrics-host", help="The address to serve metrics on.")]


def worker(
    name: Annotated[
        str | None, typer.Option(help="This worker's name in leases; unique among workers.")
    ] = None,
    collect: Annotated[
        bool,
        typer.Option(
            help="Also collect load and observe consumers; one worker does so at a time. Without: run `cleave collect`."
        ),
    ] = True,
    fleet_metrics: Annotated[
        bool,
        typer.Option(
            help="With --metrics-port, also serve the metrics of the fleet. Without: run `cleave metrics`."
        ),
    ] = True,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    json_logs: JsonLogs = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a worker in this thread until SIGTERM or SIGINT. The worker serves HTTP only if CLEAVE_API_SECRET is set, and the metrics of the
    fleet only with both `fleet_metrics` and a metrics port. Raises InvalidInput for invalid settings and for an address that cannot be
    bound. The help text is in `command_list`.
    """
    configure_process(metrics_host, metrics_port, json_logs, log_level)
    settings = load_settings()
    limit = settings.worker_statement_seconds
    with (
        application(settings, name="cleave-worker", statement_seconds=limit) as cleave,
        _fleet_metrics(is_served=fleet_metrics and metrics_port is not None),
    ):
        from controller.web.server import web_server

        running = build_worker(cleave, name, web_server(cleave.settings), collects=collect)
        on_stop_signals(running.stop)
        running.run()


@contextmanager
def _fleet_metrics(*, is_served: bool) -> Iterator[None]:
    """Export the metrics of the fleet with those of this process until the end of the block, on a connection of their own. Unless
    `is_served`, do nothing.
    """
    if not is_served:
        yield
        return
    from controller.web.fleet_metrics import FleetMetrics

    with reading_store("cleave-metrics") as store, exported(FleetMetrics(store)):
        yield


def serve(
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    json_logs: JsonLogs = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve HTTP until SIGTERM or SIGINT, without a worker: this process leads no topic. Raises InvalidInput without
    CLEAVE_API_SECRET, for invalid settings, and for an address that cannot be bound. The help text is in `command_list`.
    """
    configure_process(metrics_host, metrics_port, json_logs, log_level)
    settings = load_settings()
    limit = settings.worker_statement_seconds
    with application(settings, name="cleave-serve", statement_seconds=limit) as cleave:
        from controller.services.worker.worker import running
        from controller.web.server import web_server

        served = web_server(cleave.settings)
        if served is None:
            raise InvalidInput("CLEAVE_API_SECRET is not set, so no token can be verified; set the secret")
        parts, leave = build_server(cleave, served), threading.Event()
        on_stop_signals(leave.set)
        with telemetry.bound(server=served.address), running(parts, leave):
            telemetry.get_logger(__name__).info("serving")
            leave.wait()


def metrics(
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port to serve metrics at.")] = 9464,
    host: Annotated[str, typer.Option(help="Address to serve metrics on.")] = "127.0.0.1",
    prefix: Annotated[
        str, typer.Option(help="Only topics whose full names begin with this get series of their own.")
    ] = "",
    most_topics: Annotated[
        int,
        typer.Option(
            min=0, help="Maximum number of topics with series of their own; the others count in the totals."
        ),
    ] = 1000,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics and exit.")] = False,
    json_logs: JsonLogs = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve the metrics of the fleet at the address until SIGTERM or SIGINT; with `--once` print them instead, only `cleave_database_up 0`
    if the database cannot be read. Metrics of this process are not served. Raises InvalidInput for an address that cannot be bound. The
    help text is in `command_list`.
    """
    configure_process(host, None, json_logs, log_level)
    from prometheus_client import CollectorRegistry, generate_latest

    from controller.web.fleet_metrics import FleetMetrics

    with reading_store("cleave-metrics") as store:
        registry = CollectorRegistry()
        registry.register(FleetMetrics(store, prefix=prefix, most_topics=most_topics))
        if once:
            typer.echo(generate_latest(registry).decode(), nl=False)
            return
        leave = threading.Event()
        on_stop_signals(leave.set)
        serve_metrics(host, port, registry)
        leave.wait()


def collect(
    once: Annotated[
        bool,
        typer.Option("--once", help="Take one sample and exit. A rate needs two samples of one process."),
    ] = False,
    prefix: Annotated[str, typer.Option(help="Watch only topics whose full names begin with this.")] = "",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    json_logs: JsonLogs = False,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Collect counter samples and observe consumers until SIGTERM or SIGINT, while this process holds the lease of the collection; with
    `--once` take one sample and observe consumers once, without a lease. Raises InvalidInput for invalid settings and for an address that
    cannot be bound. The help text is in `command_list`.
    """
    configure_process(metrics_host, metrics_port, json_logs, log_level)
    with application(name="cleave-collect") as cleave:
        if once:
            collector, watch = build_collector(cleave, prefix), build_consumer_watch(cleave, prefix)
            collector.tick()
            collector.leave()
            watch.round()
            return
        collection = build_collection(cleave, prefix)
        on_stop_signals(collection.stop)
        collection.run()


def configure_process(
    metrics_host: str, metrics_port: int | None, json_logs: bool, log_level: LogLevel
) -> None:
    """Configure the logs of this process, and serve its metrics and health if a port is given. Raises InvalidInput for an address that
    cannot be bound.
    """
    telemetry.configure_logging(json_lines=json_logs, level=getattr(logging, log_level.upper()))
    serve_metrics(metrics_host, metrics_port)
