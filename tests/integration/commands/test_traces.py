"""Traces as a collector receives them: over HTTP, of real operations on a real database."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from sqlalchemy import text

from controller.commands import traces
from controller.dataplane.base import DataPlane
from controller.dataplane.embedded import EmbeddedDataPlane
from controller.devstack.ports import free_port, release_port
from controller.domain.evaluator import ALL_LANES
from controller.services.autoscaler import run_pass
from controller.services.operation_runner import RunnerContext, run_due
from controller.store.postgres.clock import database_now
from controller.store.topics import topics
from tests.support.command_line import CommandLine
from tests.support.reports import report_load
from tests.support.waiting import wait_until


class Collector:
    """What takes OTLP over HTTP, on a port of its own."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.paths: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                collector.paths.add(self.path)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def named(self, name: str) -> Span:
        [found] = [span for span in self.spans if span.name == name]
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    yield collector
    collector.server.shutdown()
    thread.join()
    collector.server.server_close()


def attributes(span: Span) -> dict[str, str]:
    return {one.key: str(getattr(one.value, one.value.WhichOneof("value") or "")) for one in span.attributes}


def inside(child: Span, parent: Span) -> bool:
    starts, ends = parent.start_time_unix_nano, parent.end_time_unix_nano
    return starts <= child.start_time_unix_nano <= child.end_time_unix_nano <= ends


def decide_and_run(cleave: CommandLine, decided_by: str = "a pass") -> None:
    """A hot segment is split as a pass and a worker do it."""
    with cleave.store.transaction() as tx:
        topic = topics.find_topic(tx, "topic://acme/shop/orders")
        report_load(tx, topic.topic_id, {0: 25_000.0, 1: 5_000.0}, cold_for=timedelta(hours=1))
    with embedded(cleave) as planes:
        assert run_pass(cleave.store, planes, ALL_LANES, decided_by=decided_by, limit=10).operation_ids
    run_operations(cleave)


@contextmanager
def embedded(cleave: CommandLine) -> Iterator[dict[str, DataPlane]]:
    url = cleave.store.address.uri
    with closing(EmbeddedDataPlane(url, call_timeout_seconds=5.0)) as plane:
        yield {"embedded": plane}


def run_operations(cleave: CommandLine) -> None:
    with embedded(cleave) as planes:
        while run_due(RunnerContext(store=cleave.store, planes=planes, runner_id="a runner")):
            pass


def test_a_split_is_told_from_its_samples_to_its_last_step(
    cleave: CommandLine, orders: str, collector: Collector
) -> None:
    decide_and_run(cleave)
    said = cleave.ok("traces", "--once", "--from", "1h", "--endpoint", collector.url)
    assert said == f"2 operation(s) sent to {collector.url}\n", "the creation of the topic, and the split"
    assert collector.paths == {"/v1/traces"}

    decision = collector.named(f"decide topic://{orders}")
    split = collector.named(f"split topic://{orders}")
    trace = [span for span in collector.spans if span.trace_id == decision.trace_id]
    assert decision.parent_span_id == b""
    assert split.parent_span_id == decision.span_id
    assert attributes(decision)["cleave.decided_by"] == "a pass"
    assert attributes(split)["cleave.origin"] == "auto"
    assert split.status.code == Status.STATUS_CODE_OK

    before = [span for span in trace if span.parent_span_id == decision.span_id and span is not split]
    assert [span.name for span in before] == ["sample", "aggregate load", "wait for a pass"]
    assert all(inside(span, decision) for span in before)
    assert attributes(before[1])["cleave.engine"] == "test"

    steps = [span for span in trace if span.parent_span_id == split.span_id]
    assert steps[0].name == "wait for the first step"
    assert {"create-children", "terminate-parents", "commit"} <= {span.name for span in steps}
    [runner] = {str(attributes(span)["cleave.runner"]) for span in steps[1:]}
    assert runner.startswith("a runner/")
    assert len({span.span_id for span in collector.spans}) == len(collector.spans)
    assert len({span.trace_id for span in collector.spans}) == 2


def test_what_a_run_of_airflow_decided_or_asked_for_names_the_run(
    cleave: CommandLine, orders: str, collector: Collector
) -> None:
    decide_and_run(cleave, "airflow cleave_split_pass scheduled__2026-11-23T05:00:00+00:00")
    cleave.execute(
        "UPDATE cleave.operation SET request_key = 'airflow/by_hand/manual__1/2/create/-1' WHERE kind = 'create'"
    )
    cleave.ok("traces", "--once", "--from", "1h", "--endpoint", collector.url)

    def of_airflow(name: str) -> dict[str, str]:
        told = attributes(collector.named(f"{name} topic://{orders}"))
        return {key: value for key, value in told.items() if key.startswith("airflow.")}

    assert of_airflow("decide") == {
        "airflow.dag_id": "cleave_split_pass",
        "airflow.run_id": "scheduled__2026-11-23T05:00:00+00:00",
    }
    assert of_airflow("create") == {
        "airflow.dag_id": "by_hand",
        "airflow.run_id": "manual__1/2",
        "airflow.task_id": "create",
    }
    assert of_airflow("split") == {}, "the decision before it names the run"


@pytest.mark.usefixtures("reader")
def test_whoever_may_only_look_may_send_them(cleave: CommandLine, collector: Collector) -> None:
    assert cleave.ok("traces", "--once", "--from", "1h", "--endpoint", collector.url).startswith(
        "0 operation(s)"
    )


def test_a_day_of_the_ledger_that_is_gone_changes_no_id(
    cleave: CommandLine, orders: str, collector: Collector
) -> None:
    decide_and_run(cleave)
    cleave.ok("traces", "--once", "--from", "1h", "--endpoint", collector.url)
    before = collector.named(f"split topic://{orders}")
    collector.spans.clear()
    cleave.execute("DELETE FROM cleave.decision")
    cleave.ok("traces", "--once", "--from", "1h", "--endpoint", collector.url)
    after = collector.named(f"split topic://{orders}")
    assert (after.trace_id, after.span_id) == (before.trace_id, before.span_id)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE cleave.decision SET lanes = '{consumer}'",
        "UPDATE cleave.load_run SET applied_at = applied_at - interval '11 minutes'",
    ],
)
def test_samples_that_nothing_was_decided_on_are_not_told_of(
    cleave: CommandLine, orders: str, collector: Collector, change: str
) -> None:
    decide_and_run(cleave)
    cleave.execute(change)
    cleave.ok("traces", "--once", "--from", "1h", "--endpoint", collector.url)
    assert collector.named(f"decide topic://{orders}")
    assert "sample" not in {span.name for span in collector.spans}


def test_samples_are_as_long_as_the_rate_window_of_the_settings(
    cleave: CommandLine, orders: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert orders
    decide_and_run(cleave)
    monkeypatch.setenv("CLEAVE_RATE_WINDOW_SECONDS", "300")
    cleave.ok("traces", "--once", "--from", "1h", "--endpoint", collector.url)
    sample = collector.named("sample")
    assert sample.end_time_unix_nano - sample.start_time_unix_nano == 300 * 10**9


def test_sent_twice_it_is_the_same(cleave: CommandLine, orders: str, collector: Collector) -> None:
    cleave.ok("segments", "split", orders, "0")
    for _ in range(2):
        cleave.ok("traces", "--once", "--from", "1h", "--endpoint", collector.url)
    half = len(collector.spans) // 2
    assert [one.span_id for one in collector.spans[:half]] == [one.span_id for one in collector.spans[half:]]
    assert half > 0


def test_what_was_given_up_is_an_error(cleave: CommandLine, orders: str, collector: Collector) -> None:
    cleave.ok("segments", "split", orders, "0", "--no-wait")
    cleave.execute("UPDATE cleave.operation SET deadline = clock_timestamp() WHERE finished_at IS NULL")
    run_operations(cleave)
    cleave.ok("traces", "--once", "--from", "1h", "--endpoint", collector.url)
    split = collector.named(f"split topic://{orders}")
    assert split.status.code == Status.STATUS_CODE_ERROR
    assert attributes(split)["cleave.state"] == "aborted"


def test_a_collector_that_is_away_can_be_tried_again(cleave: CommandLine, orders: str) -> None:
    assert orders
    port = free_port()
    answer = cleave("traces", "--once", "--from", "1h", "--endpoint", f"http://127.0.0.1:{port}")
    release_port(port)
    assert answer.code == 75
    assert f"http://127.0.0.1:{port} did not take 1 operation(s)" in answer.err.splitlines()[-1]


def test_it_follows_what_ends_and_leaves_when_told(
    cleave: CommandLine, orders: str, collector: Collector, database: str
) -> None:
    command = [sys.executable, "-m", "controller.commands.cli", "traces", "--every", "0.2"]
    environment = {
        **os.environ,
        "CLEAVE_DATABASE_URL": database,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
    }
    with subprocess.Popen([*command, "--from", "1h"], env=environment) as process:
        try:
            wait_until(lambda: collector.spans, message="what was there")
            cleave.ok("segments", "split", orders, "0")
            name = f"split topic://{orders}"
            wait_until(lambda: [one for one in collector.spans if one.name == name], message="what came")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
    assert collector.named(name)


def test_what_ends_after_the_databases_clock_went_back_is_sent(
    cleave: CommandLine, orders: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(traces, "database_now", lambda tx: database_now(tx) + timedelta(minutes=9))
        sender = traces._Sender(cleave.store, collector.url, None)
        assert sender.round() == 0
    cleave.ok("segments", "split", orders, "0")

    assert [sender.round() for _ in range(2)] == [1, 0]

    assert collector.named(f"split topic://{orders}")


def test_an_operation_that_ended_before_the_clock_went_back_does_not_hide_those_after(
    cleave: CommandLine, orders: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(traces, "database_now", lambda tx: database_now(tx) + timedelta(minutes=9))
        sender = traces._Sender(cleave.store, collector.url, None)
        cleave.ok("segments", "split", orders, "0")
        with cleave.store.transaction() as tx:
            later = "UPDATE cleave.operation SET finished_at = finished_at + interval '9 minutes' WHERE kind = 'split'"
            tx.execute(text(later))
        assert sender.round() == 1
    assert sender.round() == 0

    cleave.ok("segments", "merge", orders, "2", "3")

    assert [sender.round() for _ in range(2)] == [1, 0]
    assert collector.named(f"merge topic://{orders}")
