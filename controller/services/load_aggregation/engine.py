"""The interface of the engines that compute rates, and their input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from controller.domain.load_window import LoadWindow
from controller.landing.area import LandingArea
from controller.landing.file_names import LandedFile
from controller.landing.scratch import Scratch
from controller.services.load_aggregation.key_counts_of_run import Counted


@dataclass(frozen=True, slots=True)
class Landed:
    """The sample files of a window, and the key counts of the run, if any."""

    area: LandingArea
    files: tuple[LandedFile, ...]
    counted: Counted | None = None


class Engine(Protocol):
    """Computes the rates of one run. Writes `rates` (RATE_SCHEMA) and `heard` (HEARD_SCHEMA) to the scratch
    directory, and `sketches` (SKETCH_SCHEMA) if the run has key counts.
    """

    name: str

    def compute(self, landed: Landed, scratch: Scratch, window: LoadWindow) -> None:
        """Compute the rates of the window from the files, and write them to the scratch directory. Raises
        Retryable if the engine is unavailable, Terminal if it can never compute this run.
        """
