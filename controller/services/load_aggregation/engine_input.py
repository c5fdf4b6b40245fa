"""The input of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from controller.landing.area import LandingArea
from controller.landing.file_names import LandedFile
from controller.services.load_aggregation.key_counts_of_run import Counted


@dataclass(frozen=True, slots=True)
class Landed:
    """The sample files of a window, and the key counts of the run, if any."""

    area: LandingArea
    files: tuple[LandedFile, ...]
    counted: Counted | None = None
