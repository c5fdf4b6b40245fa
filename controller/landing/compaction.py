"""Compaction: the small files of past hours become one file, without losing or doubling a sample for any reader.

1. The small files of an hour are copied into one file whose footer names them; the file appears completely or not at
   all. From then on every listing shows the compacted file and hides the small ones (`hidden_names`).
2. A later run deletes the files that a compacted file names, once the compacted file is older than the time that a
   reader may take from its listing to its last read. Until then readers that listed the files before step 1 find
   them.

The file's name follows from the names of the replaced files: two compactors at once that listed the same files write the
same file. If one of them listed a file more, readers use the file with more samples. Rates depend on neither, because
equal samples count once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq

from controller.domain.errors import InvalidInput
from controller.landing.area import LandingArea, RejectedFile, footer_note, replacements
from controller.landing.file_names import LandedFile, compacted_path, day_directory, day_of
from controller.landing.schemas import SAMPLE_SCHEMA
from controller.telemetry import get_logger

DEFAULT_SETTLE_MS = 3_600_000
"""Milliseconds after the end of an hour until it is compacted, so that none of its ticks is still being written."""
DEFAULT_GRACE_MS = 900_000
"""Milliseconds for which replaced files are kept; a reader takes less time from listing to reading."""
DEFAULT_TARGET_BYTES = 512 * 1024 * 1024
"""Maximum size of the files, in bytes, that one compacted file replaces."""
_HOUR_MS = 3_600_000
_ROWS_AT_ONCE = 262_144

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """Results of one run: the paths of the files written, the number of files that they replace, the number of
    replaced files deleted, the files quarantined (`rejected`), and the files that could not be read and stay in
    place (`unreadable`).
    """

    written: tuple[str, ...] = ()
    replaced: int = 0
    deleted: int = 0
    rejected: tuple[RejectedFile, ...] = ()
    unreadable: tuple[RejectedFile, ...] = ()


def compact(
    area: LandingArea,
    now_ms: int,
    *,
    days_back: int = 2,
    settle_ms: int = DEFAULT_SETTLE_MS,
    grace_ms: int = DEFAULT_GRACE_MS,
    target_bytes: int = DEFAULT_TARGET_BYTES,
) -> CompactionReport:
    """Compact the last `days_back` days and today once: write compacted files for hours that ended at least `settle_ms`
    ago, quarantine files of these hours without valid samples, and delete files that were replaced at least `grace_ms`
    ago. Drafts that were last written at least `settle_ms` ago are deleted, too. `area` is an area of counter samples
    without a parent directory; `now_ms` is in milliseconds since the Unix epoch.

    Memory is bounded whatever the files contain. Files with an invalid name are ignored. Files that the storage cannot
    read stay in place and are logged; the result is logged if anything changed. Raises InvalidInput for another area,
    before anything is changed, and OSError if the storage does not answer.
    """
    if area.parent or area.schema != SAMPLE_SCHEMA:
        raise InvalidInput(
            "cannot compact this area; give an area of counter samples without a parent directory"
        )
    written: list[str] = []
    rejected: list[RejectedFile] = []
    unreadable: list[RejectedFile] = []
    replaced = 0
    for directory in _days(area, now_ms, days_back):
        _delete_drafts(area, directory, now_ms - settle_ms)
        landed, _ = area.day(directory)
        small_files = [f for f in landed if not f.is_compacted and _hour_end_ms(f) + settle_ms <= now_ms]
        examination = area.examine(
            small_files, deeply=True
        )  # a broken page would prevent the compaction of the whole hour
        rejected += examination.rejected
        unreadable += examination.unreadable
        for group in _groups(examination.files, target_bytes):
            written.append(_write(area, group, now_ms))
            replaced += len(group)
    area.quarantine(rejected)
    deleted = sum(_delete_replaced(area, day, now_ms - grace_ms) for day in _days(area, now_ms, days_back))
    for file in unreadable:
        log.warning("cannot read file", path=file.path, reason=file.reason)
    if written or deleted or rejected:
        log.info("landing compacted", written=len(written), replaced=replaced, deleted=deleted)
    return CompactionReport(tuple(written), replaced, deleted, tuple(rejected), tuple(unreadable))


def _days(area: LandingArea, now_ms: int, days_back: int) -> list[str]:
    """Return the existing day directories of the last `days_back` days and today, in order. `now_ms` is in
    milliseconds since the Unix epoch.
    """
    first, last = day_directory(now_ms - days_back * 24 * _HOUR_MS), day_directory(now_ms)
    return [d for d in area.location.directories() if day_of(d) is not None and first <= d <= last]


def _hour_end_ms(file: LandedFile) -> int:
    """Return the end of the hour (UTC) of the file's last tick, in milliseconds since the Unix epoch."""
    return (file.last_tick_ms // _HOUR_MS + 1) * _HOUR_MS


def _groups(files: Sequence[LandedFile], target_bytes: int) -> Iterator[list[LandedFile]]:
    """Yield groups of two or more consecutive files of one hour, each with a total size of at most `target_bytes`. A
    group ends before the file that would exceed this size; a file that is alone in its group is left out. `files` are
    in the order of time.
    """
    for _, hour_files in groupby(files, key=_hour_end_ms):
        group: list[LandedFile] = []
        for file in hour_files:
            if group and sum(f.size_bytes for f in group) + file.size_bytes > target_bytes:
                if len(group) > 1:
                    yield group
                group = []
            group.append(file)
        if len(group) > 1:
            yield group


def _write(area: LandingArea, group: Sequence[LandedFile], now_ms: int) -> str:
    """Write the samples of the group into one compacted file, completely or not at all. Return its path. Rows with a
    missing value are left out. The footer names the group's files, and `now_ms` as the time of writing. `group` has the
    files of one hour, oldest first.
    """
    names = sorted(file.name for file in group)
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
    path = compacted_path(group[0].first_tick_ms, max(f.last_tick_ms for f in group), digest)
    schema = SAMPLE_SCHEMA.with_metadata(footer_note(names, now_ms))
    with area.location.writing(path) as stream, pq.ParquetWriter(stream, schema) as writer:
        tables: list[pa.Table] = []
        for batch in area.batches(group, SAMPLE_SCHEMA.names):
            rows = pa.Table.from_batches([batch]).drop_null()  # a row with a missing value is not a sample
            tables.append(rows.select(schema.names).cast(schema))
            if sum(table.num_rows for table in tables) >= _ROWS_AT_ONCE:
                _flush(writer, tables)
        _flush(writer, tables)
    return path


def _flush(writer: pq.ParquetWriter, tables: list[pa.Table]) -> None:
    """Write the tables as one row group and remove them from the list, because few large row groups are read faster
    than one per tick. Does nothing for an empty list.
    """
    if tables:
        writer.write_table(pa.concat_tables(tables))
        tables.clear()


def _delete_replaced(area: LandingArea, directory: str, before_ms: int) -> int:
    """Delete the files of the day that are replaced by compacted files written at or before `before_ms`. Return
    their number.
    """
    landed = area.landed(directory)
    present = {file.name: file.path for file in landed}
    deleted = 0
    for replacement in replacements(area.location, landed).values():
        if replacement.written_at_ms <= before_ms:
            for name in replacement.names & present.keys():
                area.location.delete(present[name])
                deleted += 1
    return deleted


def _delete_drafts(area: LandingArea, directory: str, before_ms: int) -> None:
    """Delete the hidden files of the day that were last written at or before `before_ms`: drafts of writers that
    ended abnormally. Does nothing if the storage does not report the age of files.
    """
    for file in area.location.hidden_files(directory):
        if 0 < file.modified_at_ms <= before_ms:
            area.location.delete(file.path)
