"""Directories for temporary data, in memory if the system has room.

A database for each test is some three hundred files that are created and removed: on a disk that alone is half the time of most tests
with one.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

IN_MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 2 * 2**30
"""Several servers at once; a container's own is 64 MB unless it was told otherwise."""


def scratch(factory: pytest.TempPathFactory, name: str) -> Path:
    """Create a directory, which the caller removes; other accounts may enter it, as PostgreSQL's must."""
    if not _has_room(IN_MEMORY):
        return factory.mktemp(name)
    made = Path(tempfile.mkdtemp(prefix=f"cleave-{name}-", dir=IN_MEMORY))
    made.chmod(0o711)
    return made


def _has_room(directory: Path) -> bool:
    try:
        return shutil.disk_usage(directory).free >= ENOUGH_BYTES
    except OSError:
        return False
