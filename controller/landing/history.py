"""History: the rates of every segment in every window, by day, for replay and for profiles that look back.

An engine writes a run's rates into a scratch directory; when the run was merged, its files get their final names
`day=YYYY-MM-DD/window_end=<instant>/<attempt>-<file>`. So a window is kept once, even if it was computed twice.

Before the merge a note beside the rates says of which run they are. So rates whose run died after the merge are found
again (`left_over`) and a later run publishes them. Publishing can be repeated wherever it was broken off.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from controller.landing.location import Location
from controller.landing.names import day_directories, day_directory, day_of, format_tick, parse_tick
from controller.landing.schemas import RATE_SCHEMA

_SCRATCH = "_runs"
_NOTE = "finished.json"


class RateHistory:
    """Rates below `url`."""

    def __init__(self, url: str) -> None:
        """A path or URL, see `Location`."""
        self.location = Location(url)

    def scratch(self, attempt: str) -> Scratch:
        """A directory for the files of one attempt at a run, invisible to readers."""
        return Scratch(self.location, f"{_SCRATCH}/{attempt}")

    def publish(self, scratch: Scratch, window_end_ms: int) -> None:
        """Gives the run's rates their final names. A file that has its final name already is left.

        Where another attempt's rates of the window are kept, these are not, since two attempts may not be mixed.
        """
        directory = f"{day_directory(window_end_ms)}/window_end={format_tick(window_end_ms)}"
        mine = f"{scratch.attempt}-"
        if any(not file.name.startswith(mine) for file in self.location.files(directory)):
            return
        for path in scratch.rate_files():
            with suppress(FileNotFoundError):  # another run publishes it too
                name = path.partition("/rates/")[2].replace("/", "-")
                self.location.move(path, f"{directory}/{mine}{name}")

    def left_over(self) -> list[tuple[Scratch, FinishedRun]]:
        """Attempts that computed their rates and have neither published nor dropped them. Some are under way."""
        paths = [file.path for file in self.location.files(_SCRATCH) if file.name == _NOTE]
        attempts = [Scratch(self.location, path.rpartition("/")[0]) for path in paths]
        return [(attempt, note) for attempt in attempts if (note := attempt.finished()) is not None]

    def sweep(self, before_ms: int) -> list[str]:
        """Deletes scratch directories that were not written to since then, where the storage knows; returns their
        paths.
        """
        old = [
            path
            for name in self.location.directories(_SCRATCH)
            if 0 < self.location.modified_at_ms(path := f"{_SCRATCH}/{name}") <= before_ms
        ]
        for path in old:
            self.location.delete_directory(path)
        return old

    def read(self, from_ms: int, to_ms: int, topic_ids: Collection[int] | None = None) -> pa.Table:
        """The rates of every window that ended in the inclusive span, with `window_end_ms` as last column. Of other topics than
        `topic_ids` no more than one file is held at a time.
        """
        mine = None if topic_ids is None else pa.array(sorted(topic_ids), pa.int64())
        tables = [RATE_SCHEMA.append(_WINDOW_END).empty_table()]
        for day in day_directories(from_ms, to_ms):
            for file in self.location.files(day):
                window_end_ms = parse_tick(file.path.split("/")[1].removeprefix("window_end="))
                if from_ms <= window_end_ms <= to_ms:
                    rates = with_rates(
                        _read(self.location, file.path).select(RATE_SCHEMA.names).cast(RATE_SCHEMA)
                    )
                    if mine is not None:
                        rates = rates.filter(pc.is_in(rates.column("topic_id"), value_set=mine))
                    ends = pa.array([window_end_ms] * rates.num_rows, pa.int64())
                    tables.append(rates.append_column(_WINDOW_END, ends))
        return pa.concat_tables(tables)

    def expire(self, before: date) -> list[str]:
        """Deletes the days before `before`; returns their directories."""
        old = [d for d in self.location.directories() if (day := day_of(d)) is not None and day < before]
        for directory in old:
            self.location.delete_directory(directory)
        return old


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The run whose rates a scratch directory holds, all of them."""

    run_id: str
    window_end_ms: int


class Scratch:
    """The files of one run in progress: rates to be published, tables handed to an engine or back."""

    def __init__(self, location: Location, directory: str) -> None:
        self._location = location
        self._directory = directory

    @property
    def attempt(self) -> str:
        """Marks the names of this attempt's files. A run's name may be too long for that."""
        return hashlib.sha256(self._directory.encode()).hexdigest()[:8]

    @property
    def url(self) -> str:
        """The URL an engine writes below."""
        return self._location.url(self._directory)

    def rate_files(self) -> list[str]:
        """Paths of the rates the engine wrote, in the order of their names."""
        return self._files("rates")

    def rate_rows(self) -> int:
        """How many segments were observed; only footers are read."""
        return sum(_rows(self._location, path) for path in self.rate_files())

    def without_rates(self) -> pa.Table:
        """The observed segments that have no rates, as RATE_SCHEMA. A file without such a segment is not read beyond its footer."""
        tables = [_without_rates(self._location, path) for path in self.rate_files()]
        return pa.concat_tables([RATE_SCHEMA.empty_table(), *tables])

    def write(self, name: str, table: pa.Table) -> None:
        """Writes a table below `name`, one of `rates` or what an engine is handed."""
        with self._location.writing(f"{self._directory}/{name}/part-0.parquet") as stream:
            pq.write_table(table, stream)

    def read(self, name: str, schema: pa.Schema) -> pa.Table:
        """Everything an engine wrote below `name`."""
        tables = [_read(self._location, path).select(schema.names).cast(schema) for path in self._files(name)]
        return pa.concat_tables([schema.empty_table(), *tables])

    def finish(self, run_id: str, window_end_ms: int) -> None:
        """Note that the rates are whole, and of which run: before its merge."""
        with self._location.writing(f"{self._directory}/{_NOTE}") as stream:
            stream.write(json.dumps({"run_id": run_id, "window_end_ms": window_end_ms}).encode())

    def finished(self) -> FinishedRun | None:
        """What `finish` noted; None where it did not, or where the directory is gone."""
        try:
            with self._location.open(f"{self._directory}/{_NOTE}") as stream:
                return FinishedRun(**json.loads(stream.read()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def discard(self) -> None:
        """Removes the directory with what is left in it."""
        self._location.delete_directory(self._directory)

    def _files(self, name: str) -> list[str]:
        return [file.path for file in self._location.files(f"{self._directory}/{name}")]


_WINDOW_END = pa.field("window_end_ms", pa.int64())


def _read(location: Location, path: str) -> pa.Table:
    with location.open(path) as stream:
        return pq.ParquetFile(stream).read()


def with_rates(observed: pa.Table) -> pa.Table:
    """Of rows of RATE_SCHEMA those that have rates."""
    return observed.filter(pc.greater(observed["covered_ms"], 0))


def _without_rates(location: Location, path: str) -> pa.Table:
    with location.open(path) as stream:
        found = pq.read_table(stream, filters=[("covered_ms", "=", 0)])
        return found.select(RATE_SCHEMA.names).cast(RATE_SCHEMA)


def _rows(location: Location, path: str) -> int:
    with location.open(path) as stream:
        return int(pq.read_metadata(stream).num_rows)
