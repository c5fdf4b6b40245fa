"""Python examples of the documentation's pages, run with the names that the page presupposes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"


def example(page: str, number: int = 0) -> str:
    """Return the page's Python block of that number."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[number]


def run_example(page: str, number: int = 0, *, topic: str, **names: Any) -> dict[str, Any]:
    """Run the block with these names, on `topic` instead of the page's topic. Return the names as they are afterwards."""
    source = example(page, number).replace("acme/shop/orders", topic)
    exec(compile(source, page, "exec"), names)
    return names
