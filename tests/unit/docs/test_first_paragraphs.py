"""The first paragraph of a page says who needs the page, and what the reader has at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted(
    [DOCS / "quickstart.md", *(DOCS / "how-to").glob("*.md"), *(DOCS / "explanation").glob("*.md")]
)


def introduction(page: Path) -> str:
    """The text between the title and the first block or heading, on one line."""
    _, _, text = page.read_text().partition("\n")
    return " ".join(text.partition("\n```")[0].partition("\n## ")[0].split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_names_its_readers_and_its_end(page: Path) -> None:
    text = introduction(page)

    assert text.startswith("This page is for ")
    assert "At the end " in text
