"""What a test needs and this machine may not have."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def skip_without(missing: str) -> NoReturn:
    """Skip the test, saying what is missing; where CI=true it fails."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


def demand_command(name: str, remedy: str) -> str:
    """Return the path of a command; without the command the test is skipped, and failed where CI=true."""
    path = shutil.which(name)
    if path is None:
        skip_without(f"no {name} here: {remedy}")
    return path
