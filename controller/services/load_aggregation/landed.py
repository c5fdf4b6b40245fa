"""What an engine computes a run from."""

from __future__ import annotations

from dataclasses import dataclass

from controller.landing.area import LandingArea
from controller.landing.names import LandedFile
from controller.services.load_aggregation.counted import Counted


@dataclass(frozen=True, slots=True)
class Landed:
    """The window's files of samples, and counts of keys where the run is given some."""

    area: LandingArea
    files: tuple[LandedFile, ...]
    counted: Counted | None = None
