"""Forks this process, or starts one that forks (`forked`), and judges what the child was told."""

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


def found_by(kind: str, place: Place) -> list[object]:
    """Return what a process of this kind has found, its children first. It has to end well, and by itself."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.forked", kind],
        input=json.dumps(asdict(place)),
        capture_output=True,
        text=True,
        cwd=_ROOT,
        timeout=3 * SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def in_child(act: Callable[[], object]) -> Any:
    """Return what `act` returns in a forked child, which ends at once; what it raises as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(SECONDS))
        try:
            found = act()
        except Exception as error:  # noqa: BLE001 - the parent's to judge
            found = f"{type(error).__name__}: {error}"
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        found = json.loads(told.read())
    os.waitpid(pid, 0)
    return found


def demand_refused(in_child: object) -> None:
    """Each call was refused with one sentence, but for those that end something, which did nothing."""
    assert isinstance(in_child, Mapping)
    assert len(in_child) > 1
    for name, told in in_child.items():
        if name in _ENDINGS:
            assert told == _ENDINGS[name], name
        else:
            assert "was made in process" in told, (name, told)
            assert "make one after the fork" in told, (name, told)
