"""OpenTelemetry traces built from the journal: samples, load aggregation, decision, and the steps of an operation.

Collectors, Spark, Airflow passes and workers are different processes at different times, and each records its times in the database. So no
code is instrumented and no context is propagated: the spans of an operation are built from rows when the operation has ended. Their ids are
derived from the rows as well, so that sending a span twice changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from controller.store.traced_operations import Row, TracedOperation
from controller.tasks.dag_runs import DagRun, dag_run, deciding_run


class SpanMaker:
    """Builds the spans of one installation; `salt` distinguishes installations. `rate_window_seconds` is the length of
    a window of load, as in the settings: no row records it.
    """

    def __init__(self, salt: str, resource: Resource, *, rate_window_seconds: float) -> None:
        self._salt, self._resource = salt, resource
        self._rate_window = timedelta(seconds=rate_window_seconds)

    def spans(self, traced: TracedOperation) -> list[ReadableSpan]:
        """Return the spans of one ended operation, parents before children: those of its decision if `traced`
        has the decision (with a load run also the samples, the aggregation and the wait for a pass), its own,
        the wait for its first step if a step is recorded, and its steps.

        Operations of one decision share a trace, also if the decision log no longer has the decision. The same
        rows give the same ids.
        """
        operation, decision = traced.operation, traced.decision
        kind = "operation" if operation["decision_id"] is None else "decision"
        name = f"{kind} {operation[f'{kind}_id']}"  # independent of whether the decision log still has the decision
        trace_id = self._number(f"trace of {name}", 16)
        spans_before = list(self._before(trace_id, decision)) if decision else []
        parent = spans_before[0].context if spans_before else None
        root = self._span(
            trace_id,
            f"operation {operation['operation_id']}",
            f"{operation['kind']} {operation['topic']}",
            operation["intended_at"],
            operation["finished_at"],
            parent,
            _attributes(
                operation,
                ("operation_id", "topic", "kind", "state", "origin", "actor", "reason", "epoch", "attempts"),
            )
            | _of_run(dag_run(operation["request_key"])),
            failed=operation["last_error"] or operation["reason"]
            if operation["state"] == "aborted"
            else None,
        )
        waited = self._waited(trace_id, operation, traced.steps, root.context)
        return [
            *spans_before,
            root,
            *waited,
            *(self._step(trace_id, step, root.context) for step in traced.steps),
        ]

    def _before(self, trace_id: int, decision: Row) -> Iterator[ReadableSpan]:
        """Yield the span of the decision. If the decision used an aggregation run, this span begins with the window of load, and the spans
        of the samples, the aggregation, and the wait for a pass follow as its children.
        """
        number, decided_at = decision["decision_id"], decision["decided_at"]
        loaded = decision["applied_at"] is not None
        began = decision["window_end"] - self._rate_window if loaded else decided_at
        root = self._span(
            trace_id, f"decision {number}", f"decide {decision['topic']}", began, decided_at, None,
            _attributes(decision, ("decision_id", "topic", "decided_by", "code_version", "lanes", "acts"))
            | _of_run(deciding_run(decision["decided_by"])),
        )  # fmt: skip
        yield root
        if not loaded:
            return
        about = _attributes(decision, ("run_id", "engine", "samples", "segments"))
        for what, start, end in (
            ("sample", began, decision["window_end"]),
            ("aggregate load", decision["window_end"], decision["applied_at"]),
            ("wait for a pass", decision["applied_at"], decided_at),
        ):
            yield self._span(trace_id, f"{what} {number}", what, start, end, root.context, about)

    def _waited(
        self, trace_id: int, operation: Row, steps: Sequence[Row], parent: SpanContext | None
    ) -> list[ReadableSpan]:
        """Return the span from the intent of the operation to the beginning of its first recorded step; none for an operation without
        steps. It includes the wait for a runner, failed attempts with the delays after them, and the wait for older operations and readers.
        The journal records no time of a claim, so the wait for a runner has no span of its own.
        """
        if not steps:
            return []
        number, taken_up = operation["operation_id"], steps[0]["started_at"]
        return [
            self._span(
                trace_id,
                f"wait of {number}",
                "wait for the first step",
                operation["intended_at"],
                taken_up,
                parent,
                {},
            )
        ]

    def _step(self, trace_id: int, step: Row, parent: SpanContext | None) -> ReadableSpan:
        return self._span(
            trace_id,
            f"step {step['operation_id']} {step['sequence']}",
            step["step"],
            step["started_at"],
            step["finished_at"],
            parent,
            _attributes(step, ("runner", "claim_term", "sequence")),
        )

    def _span(
        self,
        trace_id: int,
        identity: str,
        name: str,
        start: datetime,
        end: datetime,
        parent: SpanContext | None,
        attributes: Mapping[str, AttributeValue],
        *,
        failed: str | None = None,
    ) -> ReadableSpan:
        """Return a span whose id is derived from `identity`. A span that would end before its start ends at its start. `failed` is the
        reason of a failure; None: success.
        """
        return ReadableSpan(
            name,
            context=self._context(trace_id, identity),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, failed) if failed is not None else Status(StatusCode.OK),
            start_time=_nanoseconds(start),
            end_time=_nanoseconds(max(start, end)),
        )

    def _context(self, trace_id: int, identity: str) -> SpanContext:
        sampled = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(trace_id, self._number(identity, 8), is_remote=False, trace_flags=sampled)

    def _number(self, identity: str, size_bytes: int) -> int:
        """Return a number derived from the identity, never 0, which is not a valid id."""
        digest = hashlib.sha256(f"{self._salt} {identity}".encode()).digest()
        return int.from_bytes(digest[:size_bytes], "big") or 1


def _attributes(row: Row, names: Sequence[str]) -> dict[str, AttributeValue]:
    """Return these columns of the row as attributes `cleave.NAME`, without columns that are None. Items of a list become texts."""
    values: dict[str, Any] = {f"cleave.{name}": row[name] for name in names if row[name] is not None}
    return {
        name: [str(item) for item in value] if isinstance(value, list) else value
        for name, value in values.items()
    }


def _of_run(run: DagRun | None) -> dict[str, AttributeValue]:
    """Return the attributes `airflow.dag_id`, `airflow.run_id` and `airflow.task_id` of the Airflow run that are not None; empty for None.
    All attempts of a task use the same key, so the attempt is unknown.
    """
    if run is None:
        return {}
    named = {"dag_id": run.dag_id, "run_id": run.run_id, "task_id": run.task_id}
    return {f"airflow.{name}": value for name, value in named.items() if value is not None}


def _nanoseconds(instant: datetime) -> int:
    """Return the instant as nanoseconds since 1970, exact to the microsecond."""
    return int(instant.timestamp() * 1_000_000) * 1000
