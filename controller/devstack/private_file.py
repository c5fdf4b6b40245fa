"""Files that contain a password: readable by this user only, and complete as soon as they exist."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write the text to a file that only this user may read. An existing file is replaced atomically, and loses wider
    permissions.
    """
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)  # its permissions may be wider
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
