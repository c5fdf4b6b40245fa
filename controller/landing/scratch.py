"""The files of a run of the aggregation in progress: rates to be published, and tables passed to or from an engine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from secrets import token_hex

import pyarrow as pa
import pyarrow.parquet as pq

from controller.landing.location import Location
from controller.landing.schemas import RATE_SCHEMA

NOTE = "finished.json"
"""Name of the file that `Scratch.finish` writes."""
RUNS = "_runs"
"""Directory of a location in which each run in progress has a directory of its own."""
_MOST_ID_BYTES = 200
RUN_IS_OVER_MS = 3_600_000
"""Milliseconds after which files of an aggregation run are not needed: no run lasts an hour."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The run whose complete rates a scratch directory holds."""

    run_id: str
    window_end_ms: int


class Scratch:
    """The files of one run in progress: rates to be published, and tables passed to or from an engine.
    `directory` is relative to `location`.
    """

    def __init__(self, location: Location, directory: str) -> None:
        self._location = location
        self._directory = directory

    @property
    def attempt(self) -> str:
        """Short identifier for the names of this attempt's files; a run's name may be too long for this."""
        return hashlib.sha256(self._directory.encode()).hexdigest()[:8]

    @property
    def url(self) -> str:
        """The URL below which an engine writes."""
        return self._location.url(self._directory)

    def rate_files(self) -> list[str]:
        """Return the paths of the rates that the engine wrote, in the order of their names."""
        return self._files("rates")

    def rate_rows(self) -> int:
        """Return the number of observed segments, with and without rates; only footers are read."""
        return sum(_rows(self._location, path) for path in self.rate_files())

    def without_rates(self) -> pa.Table:
        """Return the observed segments that have no rates, in the schema RATE_SCHEMA. Of a file without such a
        segment only the footer is read.
        """
        tables = [_without_rates(self._location, path) for path in self.rate_files()]
        return pa.concat_tables([RATE_SCHEMA.empty_table(), *tables])

    def write(self, name: str, table: pa.Table) -> None:
        """Write a table below `name`: `rates`, or the name of an engine's input. An earlier table of this name is
        replaced.
        """
        with self._location.writing(f"{self._directory}/{name}/part-0.parquet") as stream:
            pq.write_table(table, stream)

    def read(self, name: str, schema: pa.Schema) -> pa.Table:
        """Return all rows that an engine wrote below `name`, in this schema; empty if there are none. Raises
        KeyError or pyarrow's errors for files that do not have its columns and types.
        """
        tables = [
            read_table(self._location, path).select(schema.names).cast(schema) for path in self._files(name)
        ]
        return pa.concat_tables([schema.empty_table(), *tables])

    def finish(self, run_id: str, window_end_ms: int) -> None:
        """Record that the rates are complete, and to which run they belong. Call before the run's merge into the
        database, so that a later run can publish the rates if this process ends after the merge.
        """
        with self._location.writing(f"{self._directory}/{NOTE}") as stream:
            stream.write(json.dumps({"run_id": run_id, "window_end_ms": window_end_ms}).encode())

    def finished(self) -> FinishedRun | None:
        """Return the run that `finish` recorded; None without a readable record, or if the directory no longer
        exists.
        """
        try:
            with self._location.open(f"{self._directory}/{NOTE}") as stream:
                return FinishedRun(**json.loads(stream.read()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def discard(self) -> None:
        """Delete the directory with its contents; do nothing if it no longer exists."""
        self._location.delete_directory(self._directory)

    def _files(self, name: str) -> list[str]:
        """Return the paths of the files below `name`, in their order; empty if there are none."""
        return [file.path for file in self._location.files(f"{self._directory}/{name}")]


def attempt_of(run_id: str) -> str:
    """Return the name of the directory of one attempt at a run, which no other attempt shares. The name begins with the
    id of the run; a long id is cut, because file systems allow 255 bytes. `Scratch.finish` records the whole id.
    """
    beginning = run_id.encode()[:_MOST_ID_BYTES].decode(errors="ignore")
    return f"{beginning}-{token_hex(4)}"


def sweep(location: Location, now_ms: int) -> list[str]:
    """Delete the directories of runs that were last written `RUN_IS_OVER_MS` before `now_ms` (milliseconds since the
    Unix epoch) or earlier. Return their paths. A directory whose time the storage does not report stays. Raises
    OSError if the storage does not answer.
    """
    abandoned = [
        path
        for name in location.directories(RUNS)
        if 0 < location.modified_at_ms(path := f"{RUNS}/{name}") <= now_ms - RUN_IS_OVER_MS
    ]
    for path in abandoned:
        location.delete_directory(path)
    return abandoned


def read_table(location: Location, path: str) -> pa.Table:
    """Return all rows and columns of a Parquet file."""
    with location.open(path) as stream:
        return pq.ParquetFile(stream).read()


def _without_rates(location: Location, path: str) -> pa.Table:
    """Return the rows of the file whose `covered_ms` is 0, in the schema RATE_SCHEMA."""
    with location.open(path) as stream:
        rows = pq.read_table(stream, filters=[("covered_ms", "=", 0)])
        return rows.select(RATE_SCHEMA.names).cast(RATE_SCHEMA)


def _rows(location: Location, path: str) -> int:
    """Return the number of rows in the file's footer."""
    with location.open(path) as stream:
        return int(pq.read_metadata(stream).num_rows)
