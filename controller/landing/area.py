"""A landing area: unchanged input as one Parquet file per collector and tick. There is one area for counter samples, one
for key counts, and one for each kind of the brokers' reports.

The collector appends files, and the aggregation lists the files of a window and quarantines those that it cannot
read. A listing never shows a sample twice: a small file that a compacted file replaces is left out. The footer of a
compacted file names the small files that it replaces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from posixpath import join

import pyarrow as pa
import pyarrow.parquet as pq

from controller.landing.file_names import LandedFile, day_directories, day_of, parse_path, tick_path
from controller.landing.location import Location
from controller.landing.schemas import SAMPLE_SCHEMA, difference
from controller.telemetry import get_logger

REPLACES = b"cleave.replaces"
"""Key in a compacted file's footer: the names of the files that it replaces and the time of its writing, as JSON."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Names of the small files that a compacted file replaces, and the time of the compacted file's writing."""

    names: frozenset[str]
    written_at_ms: int


def footer_note(names: Sequence[str], written_at_ms: int) -> dict[bytes, bytes]:
    """Return the metadata of the footer of a file that replaces the files `names`. `replacements` reads it."""
    return {REPLACES: json.dumps({"names": list(names), "written_at_ms": written_at_ms}).encode()}


def hidden_names(location: Location, landed: Sequence[LandedFile]) -> set[str]:
    """Return the names of the files of the listing `landed` that are not read: the small files that a compacted file
    replaces, and a compacted file all of whose files another compacted file replaces together with further ones. Two
    compactors at once write two such files if one of them listed a file more.
    """
    replacement_of = replacements(location, landed)
    hidden = {name for replacement in replacement_of.values() for name in replacement.names}
    for path, replacement in replacement_of.items():
        if replacement.names and any(replacement.names < other.names for other in replacement_of.values()):
            hidden.add(path.rpartition("/")[2])
    return hidden


def replacements(location: Location, landed: Sequence[LandedFile]) -> dict[str, Replacement]:
    """Return the files that each compacted file of a listing replaces, by the compacted file's path. A compacted file
    that cannot be read replaces nothing.

    A footer is read only if another file's ticks overlap. Otherwise the small files are deleted already, and the
    compacted file is left out.
    """
    return {
        file.path: _replacement(location, file.path)
        for file in landed
        if file.is_compacted
        and any(f is not file and f.covers(file.first_tick_ms, file.last_tick_ms) for f in landed)
    }


def _replacement(location: Location, path: str) -> Replacement:
    """Return the files that the compacted file's footer names. An empty `Replacement` if the file or its note cannot be
    read: the small files then still count.

    A file that cannot be read will be quarantined. A file of which only the note is damaged stays, because its samples
    may be the only copy; the next compaction of the small files replaces it.
    """
    try:
        with location.open(path) as stream:
            metadata = pq.read_metadata(stream).metadata or {}
        note = json.loads(metadata.get(REPLACES, b'{"names": [], "written_at_ms": 0}'))
        return Replacement(frozenset(note["names"]), int(note["written_at_ms"]))
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return Replacement(frozenset(), 0)


log = get_logger(__name__)

QUARANTINE = "_quarantine"


@dataclass(frozen=True, slots=True)
class RejectedFile:
    """A file that cannot be used; `reason` is a text for people."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Examination:
    """Files that can be read, the number of their rows, files without valid samples, and files that the storage cannot
    read.
    """

    files: tuple[LandedFile, ...]
    rows: int
    rejected: tuple[RejectedFile, ...]
    unreadable: tuple[RejectedFile, ...] = ()
    """Files that could not be read for lack of permission or an error of the medium. They stay in place, because their
    contents are unknown.
    """


class LandingArea:
    """Samples below a location: `day=YYYY-MM-DD/<tick>-<collector>.parquet`. Each file has the columns of `schema`.
    Areas that share a location each have a directory `parent` for their days.
    """

    def __init__(self, location: str | Location, schema: pa.Schema = SAMPLE_SCHEMA, parent: str = "") -> None:
        """Store the location, or the location at a path or URL. The storage is not accessed before the first use."""
        self.location = location if isinstance(location, Location) else Location(location)
        self.schema = schema
        self.parent = parent

    def append(self, tick_ms: int, collector: str, samples: pa.Table) -> str:
        """Write one tick of one collector, completely or not at all. Return the file's path in the location, with the
        area's parent. A file of the same tick and collector is replaced; columns that are not in the schema are left
        out. Raises InvalidInput for a collector name that cannot be part of a file name, KeyError for a missing column,
        pyarrow's errors for values that do not fit the schema, and the errors of the storage.
        """
        path = join(self.parent, tick_path(tick_ms, collector))
        with self.location.writing(path) as stream:
            pq.write_table(samples.select(self.schema.names).cast(self.schema), stream)
        return path

    def files(self, from_ms: int, to_ms: int) -> tuple[list[LandedFile], list[RejectedFile]]:
        """Return the files whose ticks may lie in the inclusive span (milliseconds since the Unix epoch), oldest
        first, without files that a compacted file replaces; and the files whose names are not valid.

        Only the directories of the span's days are listed.
        """
        landed: list[LandedFile] = []
        invalid: list[RejectedFile] = []
        for day in day_directories(from_ms, to_ms):
            day_files, rejected = self.day(day)
            landed += [file for file in day_files if file.covers(from_ms, to_ms)]
            invalid += rejected
        return landed, invalid

    def day(self, directory: str) -> tuple[list[LandedFile], list[RejectedFile]]:
        """Return the files of one day that contain each of its samples exactly once, oldest first, and the files whose
        names are not valid. `directory` is a name such as `day=2026-11-20`; if it does not exist, both lists are
        empty. Reads the footers of compacted files that other files overlap.
        """
        landed, invalid = self._list(directory)
        hidden = hidden_names(self.location, landed)
        return [file for file in landed if file.name not in hidden], invalid

    def landed(self, directory: str) -> list[LandedFile]:
        """Return every file of one day with a valid name, oldest first, including those that a compacted file
        replaces.
        """
        return self._list(directory)[0]

    def examine(self, files: Iterable[LandedFile], *, deeply: bool = False) -> Examination:
        """Read the footers (`deeply`: all contents), and separate files that can be used, files without valid
        samples (`rejected`), and files that the storage cannot read. Nothing is moved.

        A file that was deleted in the meantime is left out. Raises OSError if the storage does not answer at all,
        because then the files are not at fault.
        """
        usable, rejected, unreadable, rows = [], [], [], 0
        for file in files:
            try:
                result = examine_file(self.location, file.path, self.schema, deeply=deeply)
            except OSError as error:
                unreadable.append(RejectedFile(file.path, f"not readable: {str(error).splitlines()[0]}"))
                continue
            if isinstance(result, str):
                rejected.append(RejectedFile(file.path, result))
            elif result is not None:
                usable.append(file)
                rows += result
        if unreadable:
            self.location.directories()  # raises if the storage is unavailable
        return Examination(tuple(usable), rows, tuple(rejected), tuple(unreadable))

    def quarantine(self, rejected: Iterable[RejectedFile]) -> list[str]:
        """Move the files below `_quarantine`, where no reader looks. Return their former paths.

        A file that cannot be moved stays, with a warning in the log; its path is returned as well. A file that no
        longer exists is left out.
        """
        former_paths = []
        for file in rejected:
            try:
                self.location.move(file.path, f"{QUARANTINE}/{file.path}")
            except FileNotFoundError:
                continue  # another run has moved the file
            except OSError as error:
                log.warning("cannot move file to quarantine", path=file.path, reason=str(error))
            former_paths.append(file.path)
        return former_paths

    def urls(self, files: Iterable[LandedFile]) -> list[str]:
        """Return the URLs of the files for Spark."""
        return [self.location.url(file.path) for file in files]

    def batches(self, files: Iterable[LandedFile], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the given columns of the files, file by file, in batches of bounded size. Raises the errors of the
        storage, also if a file was deleted, and pyarrow's errors for a file that is not Parquet.
        """
        for file in files:
            with self.location.open(file.path) as stream:
                yield from pq.ParquetFile(stream).iter_batches(columns=list(columns))

    def expire(self, before: date) -> list[str]:
        """Delete the directories of the area's days before `before`. Return their paths in the location, with the
        area's parent.
        """
        return expire_days(self.location, before, self.parent)

    def _list(self, directory: str) -> tuple[list[LandedFile], list[RejectedFile]]:
        """Return the files of one day with a valid name, oldest first, and the files whose names are not valid."""
        landed, invalid = [], []
        for file in self.location.files(join(self.parent, directory)):
            landed_file = parse_path(file.path, file.size_bytes)
            if landed_file is None:
                invalid.append(RejectedFile(file.path, "the name is not <tick>-<collector>.parquet"))
            else:
                landed.append(landed_file)
        return sorted(landed, key=lambda f: (f.first_tick_ms, f.path)), invalid


def examine_file(
    location: Location, path: str, schema: pa.Schema, *, deeply: bool = False
) -> int | str | None:
    """Read the footer of a file (`deeply`: all contents). Return the number of rows of a usable file, the defect of an unusable file as
    text (not Parquet, or a column of `schema` is missing or differs), None for a file that no longer exists.

    Raises OSError if the file exists but cannot be opened, or if the storage does not answer.
    """
    try:
        stream = location.open(path)
    except FileNotFoundError:
        return None
    with stream:
        content = stream if not deeply else pa.BufferReader(stream.read())
        try:
            parquet = pq.ParquetFile(content)
            reason = difference(parquet.schema_arrow, schema)
            if deeply and reason is None:
                for _ in parquet.iter_batches(columns=schema.names):
                    pass
        except (OSError, pa.ArrowException) as error:
            stream.seek(0)
            stream.read(1)  # Storage that stopped answering raises here, so the file is not blamed.
            return f"not readable as Parquet: {str(error).splitlines()[0]}"
    return reason or int(parquet.metadata.num_rows)


def expire_days(location: Location, before: date, parent: str = "") -> list[str]:
    """Delete the directories of the days before `before` directly below `parent`. Return their paths."""
    days = location.directories(parent)
    expired = [join(parent, name) for name in days if (day := day_of(name)) is not None and day < before]
    for path in expired:
        location.delete_directory(path)
    return expired
