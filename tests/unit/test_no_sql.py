"""No module of the interfaces has a statement of its own: lists are views, which `controller.questions` reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CONTROLLER = Path(__file__).parents[2] / "controller"
INTERFACES = ("commands", "doctor", "pages", "tasks", "web")
_STATEMENT = re.compile(r"\s*(SELECT|WITH|INSERT INTO|UPDATE|DELETE FROM|CREATE)\s")


def statements(source: str) -> Iterator[str]:
    """Constant texts that read as statements of SQL, in f-strings too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _STATEMENT.match(node.value):
            yield node.value


def test_interfaces_have_no_statements() -> None:
    found = {
        path.relative_to(CONTROLLER).as_posix(): [*statements(path.read_text())]
        for interface in INTERFACES
        for path in (CONTROLLER / interface).rglob("*.py")
    }

    assert {name: texts for name, texts in found.items() if texts} == {}


@pytest.mark.parametrize(
    "text",
    ["SELECT * FROM inspect.topics", "\n    WITH a AS (SELECT 1) SELECT * FROM a", "SELECT a.b FROM a"],
)
def test_a_statement_is_found_wherever_it_stands(text: str) -> None:
    assert [*statements(f"A = {text!r}\nB = f({text!r}, 1)\n")] == [text, text]
