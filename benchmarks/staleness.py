"""How much of the code behind a kept figure has changed since the figure was measured.

The code behind a figure is what its benchmark imports, and the programs that the benchmark starts by their names. Changed lines are
counted without comments and docstrings, moved files as moved. `python -m benchmarks.staleness` lists the figures that are stale, and fails if there are any.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.kept import RESULTS, ROOT, git

STALE_SHARE = 0.05
"""Share of changed lines from which on a figure is stale."""
_LONG_RUNS = {"soak": "tests/chaos/soak.py", "ordered_chaos": "tests/chaos/test_ordered_consumption.py"}
"""Programs of figures that no benchmark measures."""
_MODULE = re.compile(r"(controller|benchmarks|spark_jobs|cleave_provider|tests)(\.\w+)+")


@dataclass(frozen=True, slots=True)
class Staleness:
    """What has become of the code since `commit`."""

    commit: str
    changed: int
    lines: int
    is_noted: bool
    """False: the figures do not name their commit, and this is the last one before the day of the measurement."""

    @property
    def is_stale(self) -> bool:
        """Return True if too much has changed for the figure to be published."""
        return self.changed > STALE_SHARE * self.lines

    def __str__(self) -> str:
        share = f"{self.changed:,} of {self.lines:,} lines ({self.changed / self.lines:.0%})"
        source = "" if self.is_noted else " (by its day)"
        return f"commit `{self.commit}`{source}; {share} of the code behind it have changed since"


def staleness(name: str, kept: Mapping[str, Any]) -> Staleness:
    """Return the staleness of the figures kept under the name. Raises LookupError if the repository does not have their commit."""
    noted = str(kept.get("commit", ""))
    commit = noted or git(ROOT, "rev-list", "-1", f"--before={kept['measured_at']}", "HEAD")[:12]
    changes = _changes_since(commit.removesuffix("-dirty"))
    files = exercised(_LONG_RUNS.get(name, f"benchmarks/bench_{name}.py"))
    changed = sum(changes.get(path, 0) for path in files)
    lines = sum(len(_code_of(path)) for path in files)
    return Staleness(commit, min(changed, lines), lines, is_noted=bool(noted))


def exercised(program: str) -> frozenset[str]:
    """Return the files that the program may run, itself included, by their paths in the repository."""
    found: set[str] = set()
    waiting = [program]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _named_in(path)
    if any(path.startswith("controller/store/") for path in found):
        found |= {str(path.relative_to(ROOT)) for path in (ROOT / "sql").rglob("*.sql")}
    return frozenset(found)


@cache
def _named_in(path: str) -> tuple[str, ...]:
    """Return the project's modules that a file imports or names in a text, by path."""
    tree = ast.parse((ROOT / path).read_text())
    return tuple({found for node in ast.walk(tree) for name in _names(node) for found in _files_of(name)})


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (one.name for one in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (node.module, *(f"{node.module}.{one.name}" for one in node.names))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _files_of(module: str) -> Iterator[str]:
    if _MODULE.fullmatch(module):
        base = module.replace(".", "/")
        yield from (path for path in (f"{base}.py", f"{base}/__init__.py") if (ROOT / path).is_file())


@cache
def _changes_since(commit: str) -> dict[str, int]:
    """Return how many lines of each file were changed since, the more of added and deleted ones, by the present path."""
    fields = iter(git(ROOT, "diff", "--numstat", "-M", "-z", commit).split("\0"))
    changes = {}
    for field in fields:
        if field:
            _added, _deleted, path = field.split("\t")
            old = path or next(fields)
            present = path or next(fields)  # moved: the old path and the present one follow
            if present.endswith((".py", ".sql")) and (ROOT / present).exists():
                changes[present] = _changed_lines(commit, old, present)
    return changes


def _changed_lines(commit: str, old: str, present: str) -> int:
    """Return the more of added and deleted lines of a file; all its lines if the commit does not have it."""
    try:
        before = _code(old, git(ROOT, "show", f"{commit}:{old}"))
    except LookupError:
        before = []
    added = deleted = 0
    for line in difflib.unified_diff(before, _code_of(present), n=0, lineterm=""):
        added += line.startswith("+") and not line.startswith("+++")
        deleted += line.startswith("-") and not line.startswith("---")
    return max(added, deleted)


def _code_of(path: str) -> list[str]:
    return _code(path, (ROOT / path).read_text())


def _code(path: str, text: str) -> list[str]:
    """Return the lines of a file; of a Python module without comments and docstrings, each statement laid out the same way."""
    return (_without_prose(text) if path.endswith(".py") else text).splitlines()


def _without_prose(source: str) -> str:
    """Return the Python source without comments and docstrings, each statement laid out the same way."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [statement for statement in body if not _is_text(statement)]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def main() -> int:
    """List stale figures; 1 if there are any."""
    stale = 0
    for path in sorted(RESULTS.glob("*.json")):
        found = staleness(path.stem, json.loads(path.read_text()))
        if found.is_stale:
            stale += 1
            print(f"{path.stem}: {found}; measure again with `make bench ONLY={path.stem}`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
