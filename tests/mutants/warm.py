"""A process that has imported what takes long and forks for each run of pytest in the directory it is started in.

It imports nothing of the project, so each run sees the files as they are at that moment. A request is a line of JSON on
standard input (`arguments` for pytest, `environment`, `timeout_seconds`), the answer one on standard output: what became of each case
that ran (`outcomes`), and the end of what pytest printed (`output`). It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from typing import IO, Any

import pytest

# What tests and product import anyway, the slowest first; one that is not installed is left out.
_PRELOADED = (
    "hypothesis.strategies",
    "sqlalchemy.dialects.postgresql.psycopg2",
    "psycopg2.extras",
    "pyarrow.parquet",
    "pydantic_settings",
    "prometheus_client",
    "requests",
    "tenacity",
    "mmh3",
    "xdist.plugin",
    "pytest_timeout",
)
_OPTIONS = ("-q", "-W", "ignore::pytest.PytestAssertRewriteWarning", "--no-header", "--disable-warnings")
_OUTPUT_CHARACTERS = 3000


class _Recorder:
    """A plugin: what became of each case. An error outside the test itself is an `error`, and no failure."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.outcomes[report.nodeid] = report.outcome
        elif report.outcome != "passed":
            self.outcomes.setdefault(report.nodeid, "skipped" if report.skipped else "error")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = "error"


def _run_here(request: dict[str, Any], answer_to: int, printed: IO[bytes]) -> None:
    """In the forked process: never returns."""
    os.setsid()  # so that whatever it starts can be ended with it
    for standard in (1, 2):
        os.dup2(printed.fileno(), standard)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request["environment"])
    recorder = _Recorder()
    pytest.main([*_OPTIONS, *request["arguments"]], plugins=[recorder])
    sys.stdout.flush()
    with os.fdopen(answer_to, "w") as answer:
        json.dump(recorder.outcomes, answer)
    os._exit(0)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as printed:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                _run_here(request, writer, printed)
            finally:
                os._exit(1)
        os.close(writer)
        outcomes = _read_to_end(reader, time.monotonic() + request["timeout_seconds"])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        printed.seek(0)
        output = printed.read().decode(errors="replace")[-_OUTPUT_CHARACTERS:]
    return {"outcomes": json.loads(outcomes or "{}"), "output": output}


def _read_to_end(descriptor: int, deadline: float) -> bytes:
    """All that is written to it; nothing when that is not over at the deadline."""
    found = b""
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = pipe.read(65536)
            if not part:
                return found
            found += part
    return b""


def main() -> None:
    """Answer requests until there are none."""
    sys.path[0] = os.getcwd()  # not this file's directory: the tests' own modules come first
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
