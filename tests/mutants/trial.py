"""Trying mutations: each is put into a scratch checkout, its tests are run there, and the file is put back."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.mutants.catalogue import Mutation

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".cache", ".cleave", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist"
)
TIMEOUT_SECONDS = 180.0
"""Of one test under a mutation; its own time-out comes before it, unless the mutation has it hang for good."""
PATIENT_SECONDS = 1800.0
"""Of all tests without one."""


class Verdict(StrEnum):
    """What became of a mutation."""

    KILLED = "killed"
    SURVIVED = "survived"
    """A test that should have failed passed."""
    BROKEN = "broken"
    """A test could not be run, or was skipped: nothing is known."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A mutation tried: `why` names the test that did not fail, or shows the end of what pytest printed."""

    mutation: Mutation
    verdict: Verdict
    seconds: float
    why: str = ""


class Scratch:
    """A copy of a checkout with a process of its own that runs tests in it; for one thread."""

    def __init__(self, root: Path, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        """`directory` must not exist yet; `environment` is given to the tests."""
        self.directory = directory
        self._environment = dict(environment or {})
        shutil.copytree(root, directory, ignore=_LEFT_OUT)
        self._ticks = itertools.count(int(time.time()))
        self._warm = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("warm.py"))],
            cwd=directory,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._warm.communicate()
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(
        self, arguments: Sequence[str], *, timeout_seconds: float = PATIENT_SECONDS, **environment: str
    ) -> tuple[dict[str, str], str]:
        """What became of each case that pytest ran with these, and the end of what it printed; none if it hung."""
        request: dict[str, Any] = {
            "arguments": list(arguments),
            "environment": self._environment | environment,
            "timeout_seconds": timeout_seconds,
        }
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.write(json.dumps(request) + "\n")
        self._warm.stdin.flush()
        answer = json.loads(self._warm.stdout.readline())
        return answer["outcomes"], answer["output"]

    def attempt(self, mutation: Mutation, **environment: str) -> Trial:
        """Put the mutation in, see whether each of its tests fails, take it out again."""
        path, began = self.directory / mutation.change.file, time.monotonic()
        before = path.read_text(encoding="utf-8")
        self._write(path, mutation.change.apply(before))
        try:
            verdict, why = self._judge(mutation, environment)
        finally:
            self._write(path, before)
        return Trial(mutation, verdict, time.monotonic() - began, why)

    def _judge(self, mutation: Mutation, environment: Mapping[str, str]) -> tuple[Verdict, str]:
        for test in mutation.tests:
            outcomes, output = self.run(["-x", test], timeout_seconds=TIMEOUT_SECONDS, **environment)
            told = set(outcomes.values())
            if "failed" in told:
                continue
            if told == {"passed"}:
                return Verdict.SURVIVED, test
            return Verdict.BROKEN, output
        return Verdict.KILLED, ""

    def _write(self, path: Path, text: str) -> None:
        """With a time of its own: compiled files are told apart by size and whole seconds."""
        path.write_text(text, encoding="utf-8")
        tick = next(self._ticks)
        os.utime(path, (tick, tick))
