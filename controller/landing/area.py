"""A landing area: what came in, as it came, one Parquet file a collector and tick. Counter samples have one, and so have counts of
keys.

The collector appends, the aggregation asks for the files of a window and sets aside those it cannot read. A
listing never shows a sample twice: a small file that a compacted one stands for is left out of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq

from controller.landing.location import Location
from controller.landing.names import LandedFile, day_directories, day_of, parse_path, tick_path
from controller.landing.schemas import SAMPLE_SCHEMA, difference
from controller.telemetry import get_logger

log = get_logger(__name__)

QUARANTINE = "_quarantine"
REPLACES = b"cleave.replaces"
"""Key in a compacted file's footer: the names it stands for and when it was written, as JSON."""


@dataclass(frozen=True, slots=True)
class RejectedFile:
    """A file that cannot be used; `reason` is for people."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Examination:
    """Files that can be read, the rows in them, files that are no samples, and files that the storage cannot read."""

    files: tuple[LandedFile, ...]
    rows: int
    rejected: tuple[RejectedFile, ...]
    unreadable: tuple[RejectedFile, ...] = ()
    """No permission, or an error of the medium. They are left where they are, since it is not known what is in them."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Names of the small files that a compacted one stands for, and since when it does."""

    names: frozenset[str]
    written_at_ms: int


class LandingArea:
    """Samples below `url`: `day=YYYY-MM-DD/<tick>-<collector>.parquet`. Each file has the columns of `schema`."""

    def __init__(self, url: str, schema: pa.Schema = SAMPLE_SCHEMA) -> None:
        """A path or URL, see `Location`; nothing is touched before the first use."""
        self.location = Location(url)
        self.schema = schema

    def append(self, tick_ms: int, collector: str, samples: pa.Table) -> str:
        """Land one tick of one collector, whole or not at all; returns the file's path in the area."""
        path = tick_path(tick_ms, collector)
        with self.location.writing(path) as stream:
            pq.write_table(samples.select(self.schema.names).cast(self.schema), stream)
        return path

    def files(self, from_ms: int, to_ms: int) -> tuple[list[LandedFile], list[RejectedFile]]:
        """The files whose ticks may lie in the inclusive span, oldest first, and those with foreign names.

        Only the directories of the span's days are listed.
        """
        landed: list[LandedFile] = []
        foreign: list[RejectedFile] = []
        for day in day_directories(from_ms, to_ms):
            of_day, rejected = self.day(day)
            landed += [file for file in of_day if file.covers(from_ms, to_ms)]
            foreign += rejected
        return landed, foreign

    def day(self, directory: str) -> tuple[list[LandedFile], list[RejectedFile]]:
        """The files of one day that hold its samples, each exactly once, and those with foreign names."""
        landed, foreign = self._list(directory)
        replacements = self.replacements(landed)
        hidden = {name for replacement in replacements.values() for name in replacement.names}
        for path, mine in replacements.items():  # two compactors at once, one of which saw a file more
            if mine.names and any(mine.names < other.names for other in replacements.values()):
                hidden.add(path.rpartition("/")[2])
        return [file for file in landed if file.name not in hidden], foreign

    def landed(self, directory: str) -> list[LandedFile]:
        """Every file of one day, those included that a compacted one stands for."""
        return self._list(directory)[0]

    def examine(self, files: Iterable[LandedFile], *, deeply: bool = False) -> Examination:
        """Reads the footers (`deeply`: everything) and tells usable files from the others.

        A file that vanished meanwhile is left out. Storage that does not answer at all raises OSError, since that is no
        fault of the files.
        """
        good, rejected, unreadable, rows = [], [], [], 0
        for file in files:
            try:
                found = self._examine(file.path, deeply)
            except OSError as error:
                unreadable.append(RejectedFile(file.path, f"not readable: {str(error).splitlines()[0]}"))
                continue
            if isinstance(found, str):
                rejected.append(RejectedFile(file.path, found))
            elif found is not None:
                good.append(file)
                rows += found
        if unreadable:
            self.location.directories()  # raises where the storage is away
        return Examination(tuple(good), rows, tuple(rejected), tuple(unreadable))

    def quarantine(self, rejected: Iterable[RejectedFile]) -> list[str]:
        """Moves the files aside, below `_quarantine`, where no reader looks; returns their former paths.

        A file that may not be moved stays; its path is returned too.
        """
        moved = []
        for file in rejected:
            try:
                self.location.move(file.path, f"{QUARANTINE}/{file.path}")
            except FileNotFoundError:
                continue  # another run was first
            except OSError as error:
                log.warning("file cannot be moved aside", path=file.path, reason=str(error))
            moved.append(file.path)
        return moved

    def urls(self, files: Iterable[LandedFile]) -> list[str]:
        """URLs of the files, for Spark to read."""
        return [self.location.url(file.path) for file in files]

    def batches(self, files: Iterable[LandedFile], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The samples of the files, a bounded batch at a time."""
        for file in files:
            with self.location.open(file.path) as stream:
                yield from pq.ParquetFile(stream).iter_batches(columns=list(columns))

    def expire(self, before: date) -> list[str]:
        """Deletes the days before `before`; returns their directories."""
        old = [d for d in self.location.directories() if (day := day_of(d)) is not None and day < before]
        for directory in old:
            self.location.delete_directory(directory)
        return old

    def replacements(self, landed: Sequence[LandedFile]) -> dict[str, Replacement]:
        """What the compacted files of a listing stand for, by path.

        A footer is read only where another file's ticks overlap. Elsewhere the small files are deleted already.
        """
        return {
            file.path: self._replacement(file.path)
            for file in landed
            if file.is_compacted
            and any(f is not file and f.covers(file.first_tick_ms, file.last_tick_ms) for f in landed)
        }

    def _list(self, directory: str) -> tuple[list[LandedFile], list[RejectedFile]]:
        landed, foreign = [], []
        for file in self.location.files(directory):
            parsed = parse_path(file.path, file.size_bytes)
            if parsed is None:
                foreign.append(RejectedFile(file.path, "its name is not <tick>-<collector>.parquet"))
            else:
                landed.append(parsed)
        return sorted(landed, key=lambda f: (f.first_tick_ms, f.path)), foreign

    def _replacement(self, path: str) -> Replacement:
        try:
            with self.location.open(path) as stream:
                metadata = pq.read_metadata(stream).metadata or {}
        except (OSError, pa.ArrowException):
            return Replacement(frozenset(), 0)  # the small files still count, and this one will be set aside
        note = json.loads(metadata.get(REPLACES, b'{"names": [], "written_at_ms": 0}'))
        return Replacement(frozenset(note["names"]), note["written_at_ms"])

    def _examine(self, path: str, deeply: bool) -> int | str | None:
        """Rows of a usable file, the reason of an unusable one, None for one that is gone."""
        try:
            stream = self.location.open(path)
        except FileNotFoundError:
            return None
        with stream:
            content = stream if not deeply else pa.BufferReader(stream.read())
            try:
                parquet = pq.ParquetFile(content)
                reason = difference(parquet.schema_arrow, self.schema)
                if deeply and reason is None:
                    for _ in parquet.iter_batches(columns=self.schema.names):
                        pass
            except (OSError, pa.ArrowException) as error:
                stream.seek(0)
                stream.read(1)  # storage that stopped answering raises here, and not as a fault of the file
                return f"not readable as Parquet: {str(error).splitlines()[0]}"
        return reason or int(parquet.metadata.num_rows)
