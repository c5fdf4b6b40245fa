"""Number of cases that a test draws, if the number is a matter of time: few usually, many with `make chaos`.

`make chaos` sets `CLEAVE_THOROUGH`, and runs every test that draws its cases again. All Hypothesis tests have the marker `drawn`
automatically; other tests that draw must set it.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

THOROUGH = bool(os.environ.get("CLEAVE_THOROUGH"))


def cases(usually: int, thoroughly: int) -> int:
    """Return the number for the present run."""
    return thoroughly if THOROUGH else usually


def load_hypothesis_profile() -> None:
    """Set the number of examples of Hypothesis tests that do not set it. No limit of time applies to an example or to its generation,
    because both may be slow on a busy machine.
    """
    settings.register_profile(
        "cleave",
        deadline=None,
        max_examples=cases(25, 200),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("cleave")
