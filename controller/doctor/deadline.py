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
    """Return the findings of the checks, in their order. A check without an answer at `due_at` becomes one finding of level `wrong`.

    `due_at` is in `time.monotonic` seconds. Errors of a check are raised.
    """
    limit_seconds = max(0.0, due_at - time.monotonic())
    answers = {name: _begin(name, check) for name, check in checks.items()}
    wait(answers.values(), limit_seconds)
    findings: list[Finding] = []
    for name, answer in answers.items():
        findings += answer.result(0) if answer.done() else [_silent(name, limit_seconds)]
    return findings


def _begin(name: str, check: Check) -> Future[Sequence[Finding]]:
    answer: Future[Sequence[Finding]] = Future()

    def run() -> None:
        try:
            answer.set_result(check())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is read
            answer.set_exception(error)

    telemetry.start_thread(f"check-{name}", run)
    return answer


def _silent(name: str, limit_seconds: float) -> Finding:
    return Finding(
        name,
        "wrong",
        f"no answer within {limit_seconds:.2g} s; check whether the server that this check queries is frozen or unreachable",
    )
