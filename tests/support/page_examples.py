"""Python that a page of the documentation shows, run with what the page takes for granted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"


def example(page: str, number: int = 0) -> str:
    """The page's Python block of that number."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[number]


def run_example(page: str, number: int = 0, *, topic: str, **given: Any) -> dict[str, Any]:
    """Run it with these names, on that topic instead of the page's; the names as they are then."""
    source = example(page, number).replace("acme/shop/orders", topic)
    exec(compile(source, page, "exec"), given)
    return given
