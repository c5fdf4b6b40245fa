"""How many cases a test draws where their number is a matter of patience: few usually, many with `make chaos`.

`make chaos` sets ``CLEAVE_THOROUGH``, and runs every test that draws its cases once more. Marker `drawn` is on all of
Hypothesis' tests by itself; who draws otherwise marks it.
"""

from __future__ import annotations

import os

from hypothesis import settings

THOROUGH = bool(os.environ.get("CLEAVE_THOROUGH"))


def cases(usually: int, thoroughly: int) -> int:
    """The number of the two that is meant now."""
    return thoroughly if THOROUGH else usually


def load_profile() -> None:
    """How many examples a law has that does not say; how long one takes on a busy machine is no failure."""
    settings.register_profile("cleave", deadline=None, max_examples=cases(25, 200))
    settings.load_profile("cleave")
