"""Measures how much of the code behind a stored figure has changed since the figure was measured.

The code behind a figure is what its benchmark imports, and the programs that the benchmark starts by their names.
Changed lines are counted without comments and docstrings. Lines that moved to another file have not changed. `python -m
benchmarks.staleness` lists the figures that are stale, and fails if there are any.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.kept import RESULTS, ROOT, git

STALE_SHARE = 0.05
"""Largest share of changed lines with which a figure may be published."""
_LONG_RUNS = {"soak": "tests/chaos/soak.py", "ordered_chaos": "tests/chaos/test_ordered_consumption.py"}
"""Programs of figures that no benchmark measures."""
_MODULE = re.compile(r"(controller|benchmarks|spark_jobs|cleave_provider|tests)(\.\w+)+")


@dataclass(frozen=True, slots=True)
class Staleness:
    """Changes of the code since `commit`."""

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
    """Return the staleness of the figures kept under the name; if their sections were measured one by one, that of the oldest section.
    Raises LookupError if the repository does not have their commit.
    """
    sections = [part for part in kept.values() if isinstance(part, Mapping) and "measured_at" in part]
    oldest = min((kept, *sections), key=lambda part: str(part.get("measured_at", "")))
    noted = str(oldest.get("commit", ""))
    commit = noted or git(ROOT, "rev-list", "-1", f"--before={oldest['measured_at']}", "HEAD")[:12]
    changed_files = _changed_since(commit.removesuffix("-dirty"))
    files = exercised(_LONG_RUNS.get(name, f"benchmarks/bench_{name}.py"))
    changed = _changed_lines(files & changed_files.keys(), changed_files)
    lines = sum(len(_code_of(path)) for path in files)
    return Staleness(commit, min(changed, lines), lines, is_noted=bool(noted))


def exercised(program: str) -> frozenset[str]:
    """Return the files that the program may run, itself included, by their paths in the repository. With any module of the store, these
    include all SQL files.
    """
    files: set[str] = set()
    waiting = [program]
    while waiting:
        path = waiting.pop()
        if path not in files:
            files.add(path)
            waiting += _named_in(path)
    if any(path.startswith("controller/store/") for path in files):
        files |= {str(path.relative_to(ROOT)) for path in (ROOT / "sql").rglob("*.sql")}
    return frozenset(files)


@cache
def _named_in(path: str) -> tuple[str, ...]:
    """Return the project's modules that a file imports or names in a text, by path."""
    tree = ast.parse((ROOT / path).read_text())
    return tuple({file for node in ast.walk(tree) for name in _names(node) for file in _files_of(name)})


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _files_of(module: str) -> Iterator[str]:
    if _MODULE.fullmatch(module):
        base = module.replace(".", "/")
        yield from (path for path in (f"{base}.py", f"{base}/__init__.py") if (ROOT / path).is_file())


@cache
def _changed_since(commit: str) -> dict[str, str]:
    """Return the files that were changed since the commit, by their present paths, each with the id of the object that the commit has of
    it.
    """
    fields = iter(git(ROOT, "diff", "--raw", "-M", "-z", "--no-abbrev", commit).split("\0"))
    changed = {}
    for field in fields:
        if field:
            _, _, before, _, status = field.split()
            path = next(fields)
            changed[next(fields) if status.startswith("R") else path] = before
    return changed


def _changed_lines(files: Set[str], changed_files: Mapping[str, str]) -> int:
    """Return the larger of the numbers of lines that were added to all these files and deleted from them since the commit. A line that a
    deleted file of the project had is not added. `changed_files` are those of `_changed_since`.
    """
    old, present, deleted = Counter[str](), Counter[str](), Counter[str]()
    for path in files:
        old.update(_code_before(path, changed_files[path]))
        present.update(_code_of(path))
    for path, before in changed_files.items():
        if path.endswith((".py", ".sql")) and not (ROOT / path).exists():
            deleted.update(_code_before(path, before))
    return max((present - old - deleted).total(), (old - present).total())


def _code_before(path: str, before: str) -> tuple[str, ...]:
    """Return the lines of the file at the commit, which has it as the object with this id; none if the id is 0."""
    return _code(path, git(ROOT, "cat-file", "blob", before)) if before.strip("0") else ()


def _code_of(path: str) -> tuple[str, ...]:
    return _code(path, (ROOT / path).read_text())


@cache
def _code(path: str, text: str) -> tuple[str, ...]:
    """Return the lines of a file; of a Python module without comments and docstrings, each statement laid out the same way."""
    return tuple((_without_prose(text) if path.endswith(".py") else text).splitlines())


def _without_prose(source: str) -> str:
    """Return the Python source without comments and docstrings, each statement laid out the same way."""
    return ast.unparse(_Docstrings().visit(ast.parse(source)))


class _Docstrings(ast.NodeTransformer):
    """Removes every statement that is only a text."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Return the statement, or None for a text."""
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


def main() -> int:
    """List stale figures. Return 1 if there are any."""
    stale = 0
    for path in sorted(RESULTS.glob("*.json")):
        figure_staleness = staleness(path.stem, json.loads(path.read_text()))
        if figure_staleness.is_stale:
            stale += 1
            print(f"{path.stem}: {figure_staleness}; measure again with `make bench ONLY={path.stem}`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
