"""`cleave doctor`: checks everything that Cleave needs, and says how to correct each problem.

The checks run concurrently. The command answers within `REPORT_SECONDS` even if a check hangs; only `--fix` may take longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated

import typer

from controller.bootstrap import Application, application
from controller.command_output import emit, rows_table
from controller.commands.options import AsJson
from controller.doctor import pulsar
from controller.doctor.checks import CHECKS
from controller.doctor.deadline import CHECK_SECONDS, REPORT_SECONDS, STATEMENT_SECONDS, findings_by
from controller.doctor.findings import Finding, run_check

NEEDED_FOR_NAMESPACES = ("database", "schema", "pulsar")


def doctor(
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Apply the settings that segments need to the checked Pulsar namespaces."),
    ] = False,
    namespace: Annotated[
        list[str] | None,
        typer.Option(help="tenant/namespace to check in addition to those with topics; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run all checks and print their findings; exit with 1 if a finding has the level `wrong`. Pulsar namespaces are checked (and with
    `--fix` changed) only if no check of `NEEDED_FOR_NAMESPACES` is wrong. The help text is in `command_list`.
    """
    began = time.monotonic()
    with application(name="cleave-doctor", statement_seconds=STATEMENT_SECONDS) as cleave:
        looks = {name: partial(run_check, name, check, cleave) for name, check in CHECKS.items()}
        findings = findings_by(began + CHECK_SECONDS, looks)
        wrong = [
            finding.check
            for finding in findings
            if finding.level == "wrong" and finding.check in NEEDED_FOR_NAMESPACES
        ]
        findings += (
            pulsar.not_checked(namespace or [], wrong)
            if wrong
            else _namespaces(cleave, namespace or [], fix=fix, due_at=began + REPORT_SECONDS)
        )
    rows = [asdict(finding) for finding in _without_repetitions(findings)]
    emit(as_json, rows, rows_table(rows))
    if any(finding.level == "wrong" for finding in findings):
        raise typer.Exit(1)


def _without_repetitions(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings in their order. The text of a finding that only repeats the error of the check
    `database` is replaced by `as database`.
    """
    database_findings = {finding.finding for finding in findings if finding.check == "database"}
    return [
        replace(finding, finding="as database")
        if finding.check != "database" and finding.finding in database_findings
        else finding
        for finding in findings
    ]


def _namespaces(cleave: Application, requested: Sequence[str], *, fix: bool, due_at: float) -> list[Finding]:
    """Check the `requested` Pulsar namespaces and those with topics on data plane `pulsar`, and return the findings.
    With `fix`, also apply the missing settings, without a limit of time; otherwise end by `due_at`, an instant of
    the monotonic clock.
    """
    if fix:  # a fix is not interrupted halfway; each of its calls has a timeout
        return pulsar.namespaces(cleave, requested, fix=True, due_at=math.inf)
    begins_by = due_at - pulsar.LONGEST_CALL_SECONDS
    look = partial(pulsar.namespaces, cleave, requested, fix=False, due_at=begins_by)
    return findings_by(due_at, {"pulsar namespaces": look})
