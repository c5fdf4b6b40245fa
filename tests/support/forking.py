"""Forks this process, or starts one that forks (`forked`), and checks the child's results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.support.forked import SECONDS, Place

_ROOT = Path(__file__).resolve().parents[2]
_ENDINGS = {"close": "returned None", "end": "returned None"}


def results_of(place: Place, *kinds: str) -> dict[str, list[Any]]:
    """Run one process that takes these kinds in turn. Return the results of each kind, those of its children first. The process must end by
    itself with exit code 0.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.forked", *kinds],
        input=json.dumps(asdict(place)),
        capture_output=True,
        text=True,
        cwd=_ROOT,
        timeout=3 * SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results: dict[str, list[Any]] = {kind: [] for kind in kinds}
    for line in ended.stdout.splitlines():
        kind, result = json.loads(line)
        results[kind].append(result)
    return results


def in_child(act: Callable[[], object]) -> Any:
    """Return the result of `act` in a forked child, which ends at once; an error as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(SECONDS))
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 - the parent's to judge
            result = f"{type(error).__name__}: {error}"
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        result = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return result


def demand_refused(kind: str, in_child: object) -> None:
    """Assert that each call of this kind was refused with one sentence, except the ending ones, which did nothing."""
    assert isinstance(in_child, Mapping)
    assert len(in_child) > 1
    for name, result in in_child.items():
        if name in _ENDINGS:
            assert result == _ENDINGS[name], (kind, name)
        else:
            assert "was made in process" in result, (kind, name, result)
            assert "make one after the fork" in result, (kind, name, result)
