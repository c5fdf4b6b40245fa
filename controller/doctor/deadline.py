"""Runs checks concurrently and reports checks that do not answer in time.

A check may hang in a library without timeouts, so each check has a daemon thread. Neither the command nor the end of the process waits for
the thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait

from controller import telemetry
from controller.doctor.findings import Finding

STATEMENT_SECONDS = 4.0
"""Time for a statement of a check, and for an attempt to connect; shorter than `CHECK_SECONDS`, so that the check reports which
server does not answer.
"""
CHECK_SECONDS, REPORT_SECONDS = 6.0, 8.5
"""Time for the checks, and for the namespaces of Pulsar after them. With the start of the process: 10 s."""
Check = Callable[[], Sequence[Finding]]


def findings_by(due_at: float, checks: Mapping[str, Check]) -> list[Finding]:
    """Run the checks concurrently in daemon threads, and return their findings in the order of the checks. A
    check without an answer at `due_at` becomes one finding of level `wrong`, and its thread is not waited
    for.

    `due_at` is in `time.monotonic` seconds. Errors of a check are raised.
    """
    limit_seconds = max(0.0, due_at - time.monotonic())
    futures = {name: _start(name, check) for name, check in checks.items()}
    wait(futures.values(), limit_seconds)
    findings: list[Finding] = []
    for name, future in futures.items():
        findings += future.result(0) if future.done() else [_timed_out(name, limit_seconds)]
    return findings


def _start(name: str, check: Check) -> Future[Sequence[Finding]]:
    """Start the check in a daemon thread, and return the future of its findings."""
    future: Future[Sequence[Finding]] = Future()

    def run() -> None:
        try:
            future.set_result(check())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is read
            future.set_exception(error)

    telemetry.start_thread(f"check-{name}", run)
    return future


def _timed_out(name: str, limit_seconds: float) -> Finding:
    """Return the finding of a check that did not answer in time."""
    return Finding(
        name,
        "wrong",
        f"no answer within {limit_seconds:.2g} s; check whether the server that this check queries is frozen or unreachable",
    )
