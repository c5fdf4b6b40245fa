"""Files with a password in them: for this user alone, and complete as soon as they are there."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write the file, or put it in the place of an older one at once."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)  # its rights may be wider
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
