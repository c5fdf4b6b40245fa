"""Where measured figures are kept, each in a file of its own; RESULTS.md is written from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def keep(name: str, document: Mapping[str, Any], *, section: str | None = None) -> None:
    """Keep what was measured just now in place of what was kept before. With `section` the other sections stay: runs that are begun
    one by one have a page together, and each the time at which it was measured.
    """
    path, now = RESULTS / f"{name}.json", datetime.now(UTC).isoformat(timespec="seconds")
    kept: dict[str, Any] = {"measured_at": now, **document}
    if section is not None:
        before = json.loads(path.read_text()) if path.exists() else {}
        own = {key: value for key, value in kept.items() if key not in _OF_THE_PAGE}
        kept = {**before, **{key: kept[key] for key in _OF_THE_PAGE if key in kept}}
        kept[section] = {"measured_at": now, **own}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=2) + "\n")


_OF_THE_PAGE = ("measured_at", "benchmark", "machine", "command")
