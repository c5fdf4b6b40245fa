"""Writes the generated pages of docs/reference from the code: `python -m docs.reference.generate`.

With `--check` it writes nothing and exits with 1 if a page differs from the code; a test runs it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from docs.reference.pages import client, key_hash, model, program, reasons, views

HERE = Path(__file__).resolve().parent
NOTICE = "<!-- Written by docs/reference/generate.py from the code. Do not edit. -->\n"
PAGES: Mapping[str, Callable[[], str]] = {
    "client.md": client.client_page,
    "commands.md": program.commands,
    "settings.md": program.settings_page,
    "metrics.md": program.metrics,
    "policy.md": model.policy_page,
    "reasons.md": reasons.reasons,
    "errors.md": model.errors_page,
    "inspect.md": views.views,
    "key-hash.md": key_hash.key_hash_page,
    "client-vectors.json": key_hash.vectors,
}


def render(page: str) -> str:
    """Return the text of a page, or of a data file, which has no notice."""
    if not page.endswith(".md"):
        return f"{PAGES[page]()}\n"
    text = re.sub(r"\n{3,}", "\n\n", PAGES[page]()).strip()
    return f"{NOTICE}\n{text}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or with `--check` return 1 and name those that are out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is out of date")
    wants_check = parser.parse_args(arguments).check
    stale = [
        page for page in PAGES if not (HERE / page).exists() or (HERE / page).read_text() != render(page)
    ]
    if not wants_check:
        for page in stale:
            (HERE / page).write_text(render(page))
        return 0
    for page in stale:
        sys.stderr.write(
            f"docs/reference/{page} is not what the code says; run python -m docs.reference.generate\n"
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
