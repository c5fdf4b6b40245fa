"""The page about schema `inspect`, from sql/schema.sql."""

from __future__ import annotations

import re

from docs.reference.pages.markdown import ROOT, code, page

_SENTENCE = r"IS '((?:[^']|'')*)';"


def views() -> str:
    """Views and functions with their COMMENT and columns."""
    schema = (ROOT / "sql" / "schema.sql").read_text()
    parts = ["## Views"]
    comments = dict(re.findall(rf"COMMENT ON VIEW inspect\.(\w+) {_SENTENCE}", schema))
    for name, columns in sorted(view_columns(schema).items()):
        parts += [f"### `inspect.{name}`", comments[name].replace("''", "'"), ", ".join(map(code, columns))]
    parts += ["## Functions"]
    for name, arguments, columns in re.findall(
        r"CREATE FUNCTION inspect\.(\w+)\(([^)]*)\) RETURNS (TABLE\(.*\)|\w+)", schema
    ):
        comment = re.search(
            rf"COMMENT ON FUNCTION inspect\.{name}\({re.escape(arguments)}\) {_SENTENCE}", schema
        )
        if comment is None:
            raise LookupError(f"inspect.{name} has no COMMENT in sql/schema.sql; write one in sql/views")
        named = [column.split()[0] for column in columns.removeprefix("TABLE(").rstrip(")").split(", ")]
        result = ", ".join(map(code, named)) if columns.startswith("TABLE") else f"Returns {code(columns)}."
        parts += [f"### `inspect.{name}({arguments})`", comment[1].replace("''", "'"), result]
    return page(
        "Schema `inspect`",
        "What people ask, as views and functions; the role `cleave_inspector` reads them and nothing else. Queries to "
        "start from: [ten questions at night](../how-to/ten-questions-at-night.md).",
        *parts,
    )


def view_columns(schema: str) -> dict[str, list[str]]:
    """The columns of each view of schema inspect, as pg_dump lays them out: one a line, under the outermost SELECT."""
    found = {}
    for name, body in re.findall(r"CREATE VIEW inspect\.(\w+) AS\n(.*?);\n\n", schema, re.DOTALL):
        first, *_rest = re.split(r"\n  *UNION", body)
        selected = re.split(r"(?:^|\n) SELECT (?:DISTINCT ON \(.*?\) )?", first)[-1]
        items = _top_level(selected.split("\n   FROM ")[0])
        found[name] = [re.split(r"\bAS |\.", item)[-1].strip().strip('"') for item in items]
    return found


def _top_level(text: str) -> list[str]:
    """The text cut at the commas outside of all brackets."""
    items, depth = [""], 0
    for character in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return items
