"""The little Markdown that the pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The checkout."""


def page(title: str, introduction: str, *parts: str) -> str:
    """A page: its title, what it is about, and what follows."""
    return "\n\n".join((f"# {title}", introduction, *parts))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""

    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)]) + "\n"


def code(text: object) -> str:
    """As code, nothing for nothing."""
    return f"`{text}`" if text not in (None, "") else ""
