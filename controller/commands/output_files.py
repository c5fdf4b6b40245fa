"""Files that commands write, at paths that the user names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controller.domain.errors import InvalidInput


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise InvalidInput, which names the file and the reason, for an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror or error}; name a file that you may write, in a directory that exists"
        ) from error


def demand_writable(path: Path) -> None:
    """Raise InvalidInput if a file cannot be written at the path. No file is changed: one that does not exist is created and removed.
    A named pipe is not checked, because its reader would see the end of the file.
    """
    with writing(path):
        try:
            path.open("xb").close()
        except FileExistsError:
            existed = path.exists()  # False for a link whose target does not exist
            if not path.is_fifo():
                path.open("ab").close()
            if not existed:
                path.resolve().unlink()
        else:
            path.unlink()
