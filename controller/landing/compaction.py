"""Compaction: the small files of past hours become one, without losing or doubling a sample for any reader.

1. The small files of an hour are copied into one file whose footer names them; it appears whole or not at all.
   From then on every listing shows it and hides them (`LandingArea.day`).
2. A later round deletes what a compacted file names, once that file is older than a reader may take from its
   listing to its last read. Until then readers that listed before step 1 find their files.

The file's name follows from the names it stands for: two compactors at once write the same file. Rates do not depend on
it, since equal samples count once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq

from controller.landing.area import REPLACES, LandingArea, RejectedFile
from controller.landing.names import LandedFile, compacted_path, day_directory, day_of
from controller.landing.schemas import SAMPLE_SCHEMA
from controller.telemetry import get_logger

DEFAULT_SETTLE_MS = 3_600_000
"""Hours that ended this long ago are compacted: no tick of them is still under way."""
DEFAULT_GRACE_MS = 900_000
"""Replaced files are kept this long: no reader takes longer from listing to reading."""
DEFAULT_TARGET_BYTES = 512 * 1024 * 1024
_HOUR_MS = 3_600_000
_ROWS_AT_ONCE = 262_144

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What one round did: files written, files they stand for, replaced files deleted, set aside, left alone."""

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
    """One round over the last `days_back` days and today; memory stays bounded whatever the files hold."""
    written: list[str] = []
    rejected: list[RejectedFile] = []
    unreadable: list[RejectedFile] = []
    replaced = 0
    for directory in _days(area, now_ms, days_back):
        _sweep_drafts(area, directory, now_ms - settle_ms)
        landed, _ = area.day(directory)
        small = [f for f in landed if not f.is_compacted and _hour_end_ms(f) + settle_ms <= now_ms]
        examined = area.examine(small, deeply=True)  # a broken page would stop the whole hour
        rejected += examined.rejected
        unreadable += examined.unreadable
        for group in _groups(examined.files, target_bytes):
            written.append(_write(area, group, now_ms))
            replaced += len(group)
    area.quarantine(rejected)
    deleted = sum(_sweep(area, day, now_ms - grace_ms) for day in _days(area, now_ms, days_back))
    for one in unreadable:
        log.warning("file left out", path=one.path, reason=one.reason)
    if written or deleted or rejected:
        log.info("landing compacted", written=len(written), replaced=replaced, deleted=deleted)
    return CompactionReport(tuple(written), replaced, deleted, tuple(rejected), tuple(unreadable))


def _days(area: LandingArea, now_ms: int, days_back: int) -> list[str]:
    first, last = day_directory(now_ms - days_back * 24 * _HOUR_MS), day_directory(now_ms)
    return [d for d in area.location.directories() if day_of(d) is not None and first <= d <= last]


def _hour_end_ms(file: LandedFile) -> int:
    return (file.last_tick_ms // _HOUR_MS + 1) * _HOUR_MS


def _groups(files: Sequence[LandedFile], target_bytes: int) -> Iterator[list[LandedFile]]:
    """Two or more files of one hour, together about `target_bytes` at most."""
    for _, of_hour in groupby(files, key=_hour_end_ms):
        group: list[LandedFile] = []
        for file in of_hour:
            if group and sum(f.size_bytes for f in group) + file.size_bytes > target_bytes:
                if len(group) > 1:
                    yield group
                group = []
            group.append(file)
        if len(group) > 1:
            yield group


def _write(area: LandingArea, group: Sequence[LandedFile], now_ms: int) -> str:
    names = sorted(file.name for file in group)
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
    path = compacted_path(group[0].first_tick_ms, max(f.last_tick_ms for f in group), digest)
    note = json.dumps({"names": names, "written_at_ms": now_ms})
    schema = SAMPLE_SCHEMA.with_metadata({REPLACES: note.encode()})
    with area.location.writing(path) as stream, pq.ParquetWriter(stream, schema) as writer:
        waiting: list[pa.Table] = []
        for batch in area.batches(group, SAMPLE_SCHEMA.names):
            rows = pa.Table.from_batches([batch]).drop_null()  # a row with a missing value is no sample
            waiting.append(rows.select(schema.names).cast(schema))
            if sum(table.num_rows for table in waiting) >= _ROWS_AT_ONCE:
                _flush(writer, waiting)
        _flush(writer, waiting)
    return path


def _flush(writer: pq.ParquetWriter, waiting: list[pa.Table]) -> None:
    """Few large row groups read faster than one a tick."""
    if waiting:
        writer.write_table(pa.concat_tables(waiting))
        waiting.clear()


def _sweep(area: LandingArea, directory: str, before_ms: int) -> int:
    """Deletes the files that compacted files written before `before_ms` stand for."""
    landed = area.landed(directory)
    present = {file.name: file.path for file in landed}
    deleted = 0
    for replacement in area.replacements(landed).values():
        if replacement.written_at_ms <= before_ms:
            for name in replacement.names & present.keys():
                area.location.delete(present[name])
                deleted += 1
    return deleted


def _sweep_drafts(area: LandingArea, directory: str, before_ms: int) -> None:
    """Deletes the unfinished files of writers that died, where the storage knows how old these are."""
    for file in area.location.hidden_files(directory):
        if 0 < file.modified_at_ms <= before_ms:
            area.location.delete(file.path)
