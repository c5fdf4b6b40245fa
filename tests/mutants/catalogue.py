"""The catalogue of mutations: small changes of safety-critical code, each of which a named test must notice.

One TOML file per subject, next to this module. An entry:

    [[mutant]]
    id = "renew-this-term"              # unique in all files
    at = "controller/store/leases.py:_RENEW"
    change = "remove"
    sql = "l.term = :term AND"
    tests = ["tests/integration/store/test_leases.py::test_a_later_term_is_not_renewed"]
    harm = "A former holder goes on with the lease of a later term."

`at`, `change`, `select`, `sql`, `by` and `nth` are described in `change.py`. Every test listed has to fail by itself under the
mutation; a parametrised test may be named with or without its case.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutants.change import Change, ImpossibleChange, Kind

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change and the tests that have to notice it. `subject` is the name of the file it is listed in."""

    subject: str
    id: str
    change: Change
    tests: tuple[str, ...]
    harm: str


def read(directory: Path = HERE) -> list[Mutation]:
    """Return every mutation listed, in the order of the files. Raises KeyError or TypeError for a missing or unknown key."""
    return [
        _mutation(path.stem, entry)
        for path in sorted(directory.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]


def _mutation(subject: str, entry: dict[str, Any]) -> Mutation:
    name, tests, harm = entry.pop("id"), tuple(entry.pop("tests")), entry.pop("harm")
    return Mutation(subject, name, Change(kind=Kind(entry.pop("change")), **entry), tests, harm)


def problems(mutations: Sequence[Mutation], root: Path) -> list[str]:
    """Return a line for each entry that is out of date or wrong. Nothing is run for it."""
    twice = [name for name, count in Counter(one.id for one in mutations).items() if count > 1]
    listed_twice = [f"{name}: listed twice" for name in twice]
    return listed_twice + [f"{one.id}: {what}" for one in mutations for what in _problems(one, root)]


def _problems(one: Mutation, root: Path) -> Iterator[str]:
    if not one.tests or not one.harm:
        yield "tests or harm is empty"
    path = root / one.change.file
    if path.is_file():
        try:
            one.change.apply(path.read_text(encoding="utf-8"))
        except ImpossibleChange as error:
            yield str(error)
    else:
        yield f"no file {one.change.file}"
    for test in one.tests:
        if not _exists(root, test):
            yield f"no test {test}"


def _exists(root: Path, test: str) -> bool:
    """Whether there is a function of that name; which cases it has, only running it can tell."""
    file, *names = test.partition("[")[0].split("::")
    return (root / file).is_file() and "::".join(names) in _functions(root / file)


@cache
def _functions(path: Path) -> frozenset[str]:
    """Names of a test file's functions, those of classes as `Class::name`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return frozenset(found)
