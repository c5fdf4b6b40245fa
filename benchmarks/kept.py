"""Stores measured figures, each benchmark in a file; RESULTS.md is written from them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def keep(name: str, document: Mapping[str, Any], *, section: str | None = None) -> None:
    """Store figures that were measured now, with the commit, in place of the previous ones.

    With `section` the other sections stay: runs that are started one by one share a page, each with its own time of measurement.
    """
    path, now = RESULTS / f"{name}.json", datetime.now(UTC).isoformat(timespec="seconds")
    measured = {"measured_at": now, "commit": commit()}
    stored: dict[str, Any] = {**measured, **document}
    if section is not None:
        before = json.loads(path.read_text()) if path.exists() else {}
        own = {key: value for key, value in stored.items() if key not in _OF_THE_PAGE}
        stored = {**before, **{key: stored[key] for key in _OF_THE_PAGE if key in stored}}
        stored[section] = {**measured, **own}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(stored, indent=2) + "\n")


def commit() -> str:
    """Return the commit of the code that runs; it ends with `-dirty` if the code was changed since. Stored figures are no code."""
    head = git(ROOT, "rev-parse", "--short=12", "HEAD").strip()
    changed = git(ROOT, "status", "--porcelain", "--untracked-files=no", "--", ".", *_FIGURES)
    return f"{head}-dirty" if changed else head


def git(tree: Path, *arguments: str) -> str:
    """Return the output of git in the tree. Raises LookupError with git's own message."""
    done = subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True, check=False)  # noqa: S607
    if done.returncode:
        raise LookupError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


_FIGURES = (":(exclude)benchmarks/results", ":(exclude)benchmarks/RESULTS.md")
_OF_THE_PAGE = ("measured_at", "commit", "benchmark", "machine", "command")
