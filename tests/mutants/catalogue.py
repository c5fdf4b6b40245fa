"""The catalogue of mutations: small changes to safety lines, each of which a named test must notice.

One TOML file a subject, beside this module. An entry:

    [[mutation]]
    id = "topic-row-version"              # unique in all files
    file = "controller/store/topics/topics.py"
    old = 'TOPIC.c.row_version == topic.row_version'   # must occur exactly once in the file
    new = 'TOPIC.c.row_version >= 0'
    tests = ["tests/integration/store/topics/test_topics.py::test_a_change_demands_the_row_version_it_was_read_at"]
    harm = "Of two who change a topic at once the later silently undoes the earlier."

Every test listed has to fail by itself under the mutation; a parametrised one may be named with or without its case.
Where `old` would occur more than once, it takes in some text before or after it.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change and who has to notice it. `subject` is the name of the file it is listed in."""

    subject: str
    id: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    harm: str


def read(directory: Path = HERE) -> list[Mutation]:
    """Every mutation listed, by subject and in the order of the files. Raises TypeError for a missing or unknown key."""
    return [
        Mutation(subject=path.stem, tests=tuple(entry.pop("tests")), **entry)
        for path in sorted(directory.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]
    ]


def problems(mutations: Sequence[Mutation], root: Path) -> list[str]:
    """What is stale or wrong in the list, one line each; nothing is run for it."""
    twice = [name for name, count in Counter(one.id for one in mutations).items() if count > 1]
    found = [f"{name}: listed twice" for name in twice]
    return found + [f"{one.id}: {what}" for one in mutations for what in _problems(one, root)]


def _problems(one: Mutation, root: Path) -> Iterator[str]:
    empty = [field.name for field in fields(one) if not getattr(one, field.name) and field.name != "new"]
    if empty:
        yield f"empty {', '.join(empty)}"
        return
    path = root / one.file
    if not path.is_file():
        yield f"no file {one.file}"
        return
    count = path.read_text(encoding="utf-8").count(one.old)
    if count != 1:
        yield f"the old text occurs {count} times in {one.file}, not once"
    elif one.old == one.new:
        yield "nothing is changed"
    elif path.suffix == ".py" and not _compiles(mutated(path, one)):
        yield "the new text is no Python"
    for test in one.tests:
        if not _exists(root, test):
            yield f"no test {test}"


def mutated(path: Path, one: Mutation) -> str:
    """The file's text with the mutation in it."""
    return path.read_text(encoding="utf-8").replace(one.old, one.new)


def _compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


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
