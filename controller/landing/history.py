"""History: the rates of every segment in every window, by day, for replay and for profiles that use past loads.

An engine writes a run's rates into a scratch directory. After the run is merged into the database, its files get
their final names `day=YYYY-MM-DD/window_end=<instant>/<attempt>-<file>`. So a window is stored once, even if it was
computed twice.

Before the merge, `Scratch.finish` records the run in the same directory. If the run ends abnormally after the
merge, a later run finds the rates (`left_over`) and publishes them. Publishing can be repeated after any
interruption.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from controller.landing.area import expire_days
from controller.landing.file_names import day_directories, day_directory, format_tick, window_end_of
from controller.landing.location import Location
from controller.landing.schemas import RATE_SCHEMA
from controller.landing.scratch import NOTE, RUNS, FinishedRun, Scratch, read_table


class RateHistory:
    """The rates of all segments in every window, as Parquet files by day below `url`. Files of runs in progress are
    below `_runs`, where readers do not look.
    """

    def __init__(self, url: str) -> None:
        """Store a path or URL as for `Location`."""
        self.location = Location(url)

    def scratch(self, attempt: str) -> Scratch:
        """Return a directory for the files of one attempt at a run (`attempt_of`), which readers do not see."""
        return Scratch(self.location, f"{RUNS}/{attempt}")

    def publish(self, scratch: Scratch, window_end_ms: int) -> None:
        """Give the rates in the scratch directory their final names, below the window's end. A file that another run
        has published in the meantime is skipped.

        If another attempt's rates of the window are stored, these rates are not published, because two attempts must
        not be mixed. The scratch directory is not deleted. The caller has merged the run into the database.
        """
        directory = f"{day_directory(window_end_ms)}/window_end={format_tick(window_end_ms)}"
        prefix = f"{scratch.attempt}-"
        if any(not file.name.startswith(prefix) for file in self.location.files(directory)):
            return
        for path in scratch.rate_files():
            with suppress(FileNotFoundError):  # another run publishes the file as well
                name = path.partition("/rates/")[2].replace("/", "-")
                self.location.move(path, f"{directory}/{prefix}{name}")

    def left_over(self) -> list[tuple[Scratch, FinishedRun]]:
        """Return the attempts that computed their rates and have neither published nor discarded them, each with
        its run. Some may still be running.
        """
        paths = [file.path for file in self.location.files(RUNS) if file.name == NOTE]
        attempts = [Scratch(self.location, path.rpartition("/")[0]) for path in paths]
        return [(attempt, note) for attempt in attempts if (note := attempt.finished()) is not None]

    def read(self, from_ms: int, to_ms: int, topic_ids: Collection[int] | None = None) -> pa.Table:
        """Return the rates of every window that ended in the inclusive span (milliseconds since the Unix epoch), as a
        table of RATE_SCHEMA with `window_end_ms` as last column. Segments without rates, and files that are not below
        a window's end, are left out. With `topic_ids`, only rates of these topics are returned, and at most one file
        with rates of other topics is held in memory at a time. Raises the errors of the storage.
        """
        selected = None if topic_ids is None else pa.array(sorted(topic_ids), pa.int64())
        tables = [RATE_SCHEMA.append(_WINDOW_END).empty_table()]
        for day in day_directories(from_ms, to_ms):
            for file in self.location.files(day):
                window_end_ms = window_end_of(file.path)
                if window_end_ms is not None and from_ms <= window_end_ms <= to_ms:
                    rates = with_rates(
                        read_table(self.location, file.path).select(RATE_SCHEMA.names).cast(RATE_SCHEMA)
                    )
                    if selected is not None:
                        rates = rates.filter(pc.is_in(rates.column("topic_id"), value_set=selected))
                    ends = pa.array([window_end_ms] * rates.num_rows, pa.int64())
                    tables.append(rates.append_column(_WINDOW_END, ends))
        return pa.concat_tables(tables)

    def expire(self, before: date) -> list[str]:
        """Delete the directories of the days before `before`. Return their names."""
        return expire_days(self.location, before)


_WINDOW_END = pa.field("window_end_ms", pa.int64())


def with_rates(observed: pa.Table) -> pa.Table:
    """Return the rows of a table with columns of RATE_SCHEMA that have rates: those whose `covered_ms` is above 0."""
    return observed.filter(pc.greater(observed["covered_ms"], 0))
