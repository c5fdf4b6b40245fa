"""Computes the rates of a run, and once more without the broken files if the engine fails on them."""

from __future__ import annotations

from dataclasses import replace

from controller.domain.errors import Retryable
from controller.domain.load_window import LoadWindow
from controller.landing.area import Examination
from controller.landing.scratch import Scratch
from controller.services.load_aggregation.engine import Engine, Landed
from controller.services.load_aggregation.key_counts_of_run import set_aside_files


def compute_without_broken_files(
    engine: Engine, landed: Landed, examined: Examination, scratch: Scratch, window: LoadWindow
) -> tuple[Examination, tuple[str, ...]]:
    """Have the engine compute the rates of the landed files. Return the examination of the sample files that the
    engine used, which is `examined` if no file was broken, and the paths of the broken files.

    A file may have a valid footer and broken pages. So after an error other than Retryable, the sample files and the
    key counts are read to their end. Broken files are quarantined or left out, and the engine computes once more
    without them. If no file is broken, or if no sample file is left, the error of the engine is raised. Raises the
    errors of the engine, and OSError if the storage does not answer.
    """
    try:
        engine.compute(landed, scratch, window)
    except Retryable:
        raise
    except Exception:
        complete = landed.area.examine(landed.files, deeply=True)
        broken = set_aside_files(landed.area, complete)
        if landed.counted is not None:
            broken += landed.counted.leave_out_broken()
        if not broken or not complete.files:
            raise
        engine.compute(replace(landed, files=complete.files), scratch, window)
        return complete, broken
    return examined, ()
