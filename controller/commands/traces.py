"""`cleave traces`: sends the spans of each operation to an OpenTelemetry collector when the operation has ended."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

import typer

from controller import telemetry
from controller.clock import SystemClock
from controller.command_output import say
from controller.commands.options import From
from controller.commands.processes import JsonLogs
from controller.commands.read_only_store import reading_store
from controller.commands.stop_signals import on_stop_signals
from controller.domain.errors import Retryable, Unsupported
from controller.questions.spans import instant
from controller.repeating import Repeating
from controller.settings import load_settings
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store
from controller.store.postgres.snapshots import snapshot
from controller.store.traced_operations import TracedOperation, ended_operations, installed_at

log = telemetry.get_logger(__name__)

PAGE = 200
"""Maximum number of operations in one batch."""
OVERLAP_SECONDS = 30.0
"""Time that is read again, because transactions do not become visible in the order of their instants. Equal ids prevent duplicates."""


def traces(
    endpoint: Annotated[
        str,
        typer.Option(
            envvar="OTEL_EXPORTER_OTLP_ENDPOINT", help="The collector's base URL for OTLP over HTTP."
        ),
    ] = "http://localhost:4318",
    since: From = None,
    every: Annotated[float, typer.Option(min=0.2, max=3600.0, help="Seconds between polls.")] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Send the operations since --from and exit.")] = False,
    json_logs: JsonLogs = False,
) -> None:
    """Send the spans of operations that end after `since` (None: after the start) to the collector every `every` seconds until SIGTERM or
    SIGINT; an error of a round is logged, and the next round retries. With `--once` send one round, print its number of operations, and
    raise its errors. Also raises the errors of `_Sender`. The help text is in `command_list`.
    """
    telemetry.configure_logging(json_lines=json_logs)
    with reading_store("cleave-traces") as store:
        sender = _Sender(store, endpoint, since)
        if once:
            say(f"{sender.round()} operation(s) sent to {endpoint}")
            return
        leave = threading.Event()
        on_stop_signals(leave.set)

        def send() -> float:
            sender.round()
            return every

        Repeating(
            send, leave, log, "traces not sent; the next round retries", retry_seconds=(every, every)
        ).run()


class _Sender:
    """A sender of the operations that end after `since`, a time or an age; None: after the construction."""

    def __init__(self, store: Store, endpoint: str, since: str | None) -> None:
        """Read the database's time and the identity of the installation. Raises Unsupported without OpenTelemetry, InvalidInput for a text
        that is neither a time nor an age, and for an invalid setting.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource

            from controller.commands.trace_spans import SpanMaker
        except ImportError as error:
            raise Unsupported(
                f"OpenTelemetry is missing ({error}); run pip install pulsar-cleave[traces]"
            ) from error
        self._store, self._endpoint = store, endpoint
        with snapshot(store) as tx:
            now, salt = database_now(tx), installed_at(tx).isoformat()
        self._since: datetime = now if since is None else instant(since, now)
        self._clock = SystemClock()
        self._read_at = now, self._clock.monotonic_seconds()
        """The database's time as read last, and the time of that reading by a clock that is never set."""
        self._exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=5)
        self._maker = SpanMaker(
            salt,
            Resource.create({"service.name": "cleave"}),
            rate_window_seconds=load_settings().rate_window_seconds,
        )
        self._sent: dict[int, datetime] = {}

    def round(self) -> int:
        """Send the operations that have ended since the last round, in pages, and return their number. The first round begins at `since`.
        An operation of an accepted page is not sent again by this process.

        If an error ends the round, the next round sends the remaining operations, beginning with the whole page that failed. Raises
        Retryable if the collector does not accept spans, or if the database cannot be reached.
        """
        self._follow_clock()
        since, after, sent = self._since, 0, 0
        while page := self._page(since, after):
            fresh = [traced for traced in page if traced.operation["operation_id"] not in self._sent]
            if fresh:
                self._send(fresh)
            self._sent |= {
                traced.operation["operation_id"]: traced.operation["finished_at"] for traced in fresh
            }
            sent += len(fresh)
            last = page[-1].operation
            since, after = last["finished_at"], last["operation_id"]
        # Operations that ended before the clock went back may have times of the future, and those after it earlier ones.
        until, _ = self._read_at
        self._since = max(self._since, min(since, until) - timedelta(seconds=OVERLAP_SECONDS))
        self._sent = {number: ended for number, ended in self._sent.items() if ended >= self._since}
        return sent

    def _follow_clock(self) -> None:
        """Move the begin of the next round back by as much as the clock of the database went back since the last call.
        Operations that have ended since then may have earlier times than those that ended before.
        """
        monotonic = self._clock.monotonic_seconds()
        with snapshot(self._store) as tx:
            now = database_now(tx)
        last_now, last_monotonic = self._read_at
        went_back = last_now + timedelta(seconds=monotonic - last_monotonic) - now
        if went_back > timedelta(seconds=1):
            self._since -= went_back
        self._read_at = now, self._clock.monotonic_seconds()

    def _page(self, since: datetime, after: int) -> list[TracedOperation]:
        """Return the next operations, in the order in which they ended: those after the end `since` and, at the same end, the id `after`."""
        with snapshot(self._store) as tx:
            return ended_operations(tx, since, after, limit=PAGE)

    def _send(self, operations: Sequence[TracedOperation]) -> None:
        """Send the spans of the operations. Raises Retryable if the collector does not accept them."""
        spans = {
            span.context.span_id: span
            for operation in operations
            for span in self._maker.spans(operation)
            if span.context
        }
        # Operations of one decision share the earlier spans, which are sent once.
        if self._exporter.export([*spans.values()]).name != "SUCCESS":
            raise Retryable(
                f"the collector at {self._endpoint} did not take {len(operations)} operation(s); check that it is running and accepts OTLP over HTTP"
            )
