"""Helpers that write the Markdown of the pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The checkout."""


def page(title: str, introduction: str, *parts: str) -> str:
    """Return a page with its title, its introduction and further parts."""
    return "\n\n".join((f"# {title}", introduction, *parts))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""

    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)]) + "\n"


def code(text: object) -> str:
    """Return the text as code; empty for None and for empty text."""
    return f"`{text}`" if text not in (None, "") else ""
