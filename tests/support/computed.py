"""Functions that tests run in a child process."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import NoReturn

from controller.domain.errors import NotFound


def process_id() -> int:
    return os.getpid()


def environment() -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment."""
    return sys.orig_argv, dict(os.environ)


def for_ever(started: str) -> NoReturn:
    """Write this process's id to the file, and never end."""
    Path(started).write_text(str(os.getpid()))
    while True:
        threading.Event().wait()


def refuse() -> NoReturn:
    raise NotFound("no load was recorded")


def allocate(count: int) -> int:
    return len(bytearray(count))


def leave(code: int) -> NoReturn:
    os._exit(code)


class Unreadable(Exception):
    """An object that cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def raise_unreadable() -> NoReturn:
    raise Unreadable("a", "b")
