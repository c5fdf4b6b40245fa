"""What a test needs and this machine may not have."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_without(missing: str) -> NoReturn:
    """Skip the test, saying what is missing; where CI=true it fails."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)
