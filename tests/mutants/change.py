"""One change of a file: the object it is in, a selector within the object, and the kind of change.

`at` names a file and an object in it: `x/leases.py:Leases.renew`, `x/leases.py:_RENEW`, `sql/schema/10_topics.sql:segment`; without an
object the whole file is searched. Python is changed in its syntax tree, so lines, format and comments do not matter. `select` is a
statement or an expression, as `ast.unparse` prints it; a compound statement is selected by its head (`if late:`), and `...` stands for
anything. `sql` selects SQL text instead, in an SQL file or in the strings of a Python object; any white space equals any other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

_Place = TypeVar("_Place")
_STATEMENT = re.compile(r"^(?:CREATE|ALTER|COMMENT|GRANT|REVOKE|INSERT|SELECT|DO) ", re.MULTILINE)


class ImpossibleChange(ValueError):
    """The change cannot be made, since the object or the selected code is missing or not unique."""


class Kind(StrEnum):
    """How the selected code is changed."""

    REMOVE = "remove"
    """A statement, operand, argument, element or SQL text is left out."""
    NEVER = "never"
    """A condition is False."""
    ALWAYS = "always"
    """A condition is True."""
    NEGATE = "negate"
    """A condition is its opposite."""
    BOUNDARY = "boundary"
    """A comparison includes its bound, or excludes it."""
    REPLACE = "replace"
    """The code given as `by` takes its place."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one file. `nth` counts from 1 and is needed only where the selector fits several places of the object."""

    at: str
    kind: Kind
    select: str = ""
    sql: str = ""
    by: str = ""
    nth: int = 0

    @property
    def file(self) -> str:
        """The path of the file."""
        return self.at.partition(":")[0]

    def apply(self, source: str) -> str:
        """Return the changed source. Raises Unfit if the change does not apply to exactly one place."""
        name = self.at.partition(":")[2]
        if self.file.endswith(".sql"):
            text = self._single(list(self._text().finditer(source, *_span(source, name))))
            return source[: text.start()] + self.by + source[text.end() :]
        tree = ast.parse(source)
        before = ast.unparse(tree)
        node, new = self._in_strings(_object(tree, name)) if self.sql else self._in_code(_object(tree, name))
        changed = _Replacement(node, new).visit(tree)
        try:
            after = ast.unparse(ast.fix_missing_locations(changed))
            ast.parse(after)
        except (AttributeError, SyntaxError) as error:  # a part is missing, or may not stand there
            raise ImpossibleChange(f"the changed code is no Python: {error}") from error
        if after == before:
            raise ImpossibleChange("nothing is changed")
        return after

    def _in_code(self, part: ast.AST) -> tuple[ast.AST, Any]:
        node = self._single(_selected(part, self.select))
        return node, _changed(node, self.kind, self.by)

    def _in_strings(self, part: ast.AST) -> tuple[ast.AST, Any]:
        pattern = self._text()
        strings = [(node, *_printed_string(node)) for node in _strings(part)]
        node, values, found = self._single(
            [(node, values, found) for node, text, values in strings for found in pattern.finditer(text)]
        )
        return node, _string(found.string[: found.start()] + self.by + found.string[found.end() :], values)

    def _text(self) -> re.Pattern[str]:
        return re.compile(r"\s+".join(map(re.escape, self.sql.split())))

    def _single(self, places: Sequence[_Place]) -> _Place:
        if 0 < self.nth <= len(places):
            return places[self.nth - 1]
        if self.nth or len(places) != 1:
            raise ImpossibleChange(f"{self.select or self.sql!r} is there {len(places)} times")
        return places[0]


class _Replacement(ast.NodeTransformer):
    def __init__(self, node: ast.AST, new: Any) -> None:
        self._node, self._new = node, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._node else self.generic_visit(node)


def _object(tree: ast.Module, name: str) -> ast.AST:
    """Return the function, class or variable of that qualified name."""
    part: Any = tree
    for step in filter(None, name.split(".")):
        part = next((node for node in part.body if step in _names(node)), None)
        if part is None:
            raise ImpossibleChange(f"there is no {name}")
    return part  # type: ignore[no-any-return]


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _span(source: str, name: str) -> tuple[int, int]:
    """Return where the statement that creates the object begins and ends."""
    if not name:
        return 0, len(source)
    begin = re.search(rf"^CREATE [A-Z ]+(?:\w+\.)?{re.escape(name)}\b", source, re.MULTILINE)
    if begin is None:
        raise ImpossibleChange(f"there is no {name}")
    end = _STATEMENT.search(source, begin.end())
    return begin.start(), end.start() if end else len(source)


def _selected(part: ast.AST, selector: str) -> list[ast.stmt | ast.expr | ast.keyword]:
    """Return the statements, expressions and keyword arguments that the selector fits, in the order of the source."""
    head = selector.endswith(":")
    wanted = ast.unparse(ast.parse(f"{selector} pass" if head else selector))
    pattern = re.compile(
        re.escape(_dense(wanted.partition("\n")[0] if head else wanted)).replace(r"\.\.\.", ".*")
    )
    hidden = {node.value for node in ast.walk(part) if isinstance(node, ast.Expr)}
    nodes = [
        node
        for node in ast.walk(part)
        if isinstance(node, ast.stmt | ast.expr | ast.keyword) and node not in hidden
    ]
    fitting = [node for node in nodes if pattern.fullmatch(_dense(_printed(node, head)))]
    return sorted(fitting, key=lambda node: (node.lineno, node.col_offset))


def _printed(node: ast.AST, head: bool) -> str:
    if not head:
        return ast.unparse(node)
    return (
        ast.unparse(node).partition("\n")[0] if hasattr(node, "body") and isinstance(node, ast.stmt) else ""
    )


def _strings(part: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Yield the strings, those with values between braces as a whole."""
    if isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str)):
        yield part
    else:
        for child in ast.iter_child_nodes(part):
            yield from _strings(child)


def _printed_string(node: ast.Constant | ast.JoinedStr) -> tuple[str, dict[str, ast.expr]]:
    """Return the string's text, and the values which it has between braces."""
    if isinstance(node, ast.Constant):
        return str(node.value), {}
    values: dict[str, ast.expr] = {}
    text = ""
    for one in node.values:
        if isinstance(one, ast.FormattedValue):
            key = f"{{{ast.unparse(one.value)}}}"
            values[key] = one
            text += key
        elif isinstance(one, ast.Constant):
            text += str(one.value)
    return text, values


def _string(text: str, values: dict[str, ast.expr]) -> ast.expr:
    """Return the string of that text; the reverse of `_printed_string`."""
    if not values:
        return ast.Constant(text)
    parts = re.split(f"({'|'.join(map(re.escape, values))})", text)
    return ast.JoinedStr([values.get(one) or ast.Constant(one) for one in parts])


def _dense(text: str) -> str:
    return re.sub(r"\s", "", text)


def _changed(node: ast.AST, kind: Kind, by: str) -> Any:
    """Return what takes the node's place: a node, several statements, or None where it is left out."""
    if kind is Kind.REMOVE:
        return ast.Pass() if isinstance(node, ast.stmt) else None
    if isinstance(node, ast.keyword):
        node.value = _changed(node.value, kind, by)
        return node
    if kind is Kind.REPLACE:
        return ast.parse(by).body if isinstance(node, ast.stmt) else ast.parse(by, mode="eval").body
    if isinstance(node, ast.If | ast.While):
        node.test = _changed(node.test, kind, by)
        return node
    if kind is Kind.NEGATE and isinstance(node, ast.expr):
        return ast.UnaryOp(ast.Not(), node)
    if kind is Kind.BOUNDARY and isinstance(node, ast.Compare):
        [operator] = node.ops
        return ast.Compare(node.left, [_BOUNDARY[type(operator)]()], node.comparators)
    if kind in (Kind.NEVER, Kind.ALWAYS):
        return ast.Constant(kind is Kind.ALWAYS)
    raise ImpossibleChange(f"{ast.unparse(node)} does not take {kind}")


_BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
