"""Requirements of a test that this machine may lack."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def skip_without(missing: str) -> NoReturn:
    """Skip the test with the message; fail it if CI=true."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


def demand_command(name: str, remedy: str) -> str:
    """Return the path of a command. Without the command the test is skipped, or failed if CI=true."""
    path = shutil.which(name)
    if path is None:
        skip_without(f"no {name} here: {remedy}")
    return path
