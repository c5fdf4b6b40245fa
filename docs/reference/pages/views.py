"""The page about schema `inspect`, from sql/views."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs.reference.pages.markdown import ROOT, code, page

_SENTENCE = r"IS\s+'((?:[^']|'')*)';"
_TOKEN = re.compile(r"'(?:[^']|'')*'|--[^\n]*|[A-Za-z_]\w*|\s+|.", re.DOTALL)


def source() -> str:
    """Return the text of the files of sql/views, in the order in which they run."""
    return "\n".join(path.read_text() for path in sorted((ROOT / "sql" / "views").glob("*.sql")))


def views() -> str:
    """Return the page of views and functions with their COMMENT and columns."""
    sql = source()
    parts = ["## Views"]
    comments = dict(re.findall(rf"COMMENT ON VIEW inspect\.(\w+) {_SENTENCE}", sql))
    for name, columns in sorted(view_columns(sql).items()):
        parts += [f"### `inspect.{name}`", comments[name].replace("''", "'"), ", ".join(map(code, columns))]
    parts += ["## Functions"]
    functions = r"CREATE FUNCTION inspect\.(\w+)\(([^)]*)\)\s+RETURNS (TABLE\s*\([^)]*\)|\w+)"
    for name, arguments, result in sorted(re.findall(functions, sql)):
        types = ", ".join(argument.split()[-1] for argument in arguments.split(", "))
        comment = re.search(rf"COMMENT ON FUNCTION inspect\.{name}(?:\({types}\))? {_SENTENCE}", sql)
        if comment is None:
            raise LookupError(f"inspect.{name}({types}) has no COMMENT in sql/views; write one")
        columns = [column.split()[0] for column in result.partition("(")[2].rstrip(")").split(",") if column]
        returned = ", ".join(map(code, columns)) if columns else f"Returns {code(result)}."
        parts += [f"### `inspect.{name}({arguments})`", comment[1].replace("''", "'"), returned]
    return page(
        "Schema `inspect`",
        "This page is for operators who query Cleave with SQL. It lists the views and functions of schema `inspect` with their columns. The role "
        "`cleave_inspector` can read them and nothing else. [Ten questions at night](../how-to/ten-questions-at-night.md) has queries to start from.",
        *parts,
    )


def view_columns(sql: str) -> dict[str, list[str]]:
    """Return the columns of each view of schema inspect, from the select list of its outermost SELECT."""
    columns: dict[str, list[str]] = {}
    for name, body in re.findall(r"CREATE VIEW inspect\.(\w+) AS\n(.*?;)\n", sql, re.DOTALL):
        items = [re.sub(r"^\s*DISTINCT ON \(.*?\)", "", item) for item in _select_list(body)]
        columns[name] = [re.split(r"\bAS |\.", item)[-1].strip().strip('"') for item in items]
    return columns


def _select_list(body: str) -> list[str]:
    """Return the items between the first SELECT and its FROM outside of all brackets."""
    items: list[str] = []
    previous = ""
    for word in _outer_tokens(body):
        if word == "SELECT" and not items:
            items.append("")
        elif word in {"FROM", ";"} and items and previous != "DISTINCT":
            return items
        elif word == "," and items:
            items.append("")
        elif items:
            items[-1] += word
        previous = word if word.strip() else previous
    return items


def _outer_tokens(body: str) -> Iterator[str]:
    """Yield the tokens outside of all brackets, and each bracket with its contents as one token."""
    depth, inside = 0, ""
    for token in _TOKEN.findall(body):
        if token.startswith("--"):
            continue
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token, 0)
        inside += token
        if depth == 0:
            yield inside
            inside = ""
