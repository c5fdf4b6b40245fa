"""The glossary has one entry for each term, and each entry is complete."""

from __future__ import annotations

from pathlib import Path

GLOSSARY = Path(__file__).parents[3] / "docs" / "reference" / "glossary.md"


def entries() -> list[tuple[str, ...]]:
    """Term, meaning and counterpart of each entry."""
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return [row for row in rows if row[0] != "term"]


def test_each_term_has_one_complete_entry() -> None:
    rows = entries()
    terms = [term for row in rows for term in row[0].split(", ")]

    assert 60 <= len(rows) <= 85
    assert sorted(set(terms)) == sorted(terms)
    assert [row for row in rows if len(row) != 3 or not all(row)] == []
