"""The landing area: what is listed, what is set aside, what is deleted."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from controller.landing.area import LandingArea, RejectedFile
from controller.landing.location import FoundFile
from controller.landing.schemas import SAMPLE_SCHEMA
from tests.unit.landing.conftest import DAY, HOUR, NOON, counts, samples


def test_a_tick_can_be_read_back(area: LandingArea) -> None:
    path = area.append(NOON, "c", samples(1, 2))

    files, foreign = area.files(NOON, NOON)
    assert ([file.path for file in files], foreign) == ([path], [])
    assert area.urls(files) == [area.location.url(path)]
    assert pa.Table.from_batches(area.batches(files, SAMPLE_SCHEMA.names)).equals(samples(1, 2))
    assert area.examine(files).rows == 2


def test_only_the_files_of_the_span_are_listed(area: LandingArea) -> None:
    for number, instant in enumerate((NOON - 24 * HOUR, NOON - 1, NOON, NOON + 5, NOON + 6)):
        area.append(instant, "c", samples(number))

    assert counts(area, NOON, NOON + 5) == [2, 3]
    assert counts(area, NOON - 24 * HOUR, NOON - 1) == [0, 1]


def test_the_cost_of_a_listing_does_not_grow_with_other_days(
    area: LandingArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(5):
        area.append(NOON - day * 24 * HOUR, "c", samples(day))
    listed: list[str] = []

    def note(directory: str) -> list[FoundFile]:
        listed.append(directory)
        return []

    monkeypatch.setattr(area.location, "files", note)

    area.files(NOON - 120_000, NOON)

    assert listed == [DAY]


def _write(area: LandingArea, name: str, table: pa.Table) -> None:
    with area.location.writing(f"{DAY}/{name}") as stream:
        pq.write_table(table, stream)


def test_files_that_are_none_are_told_with_the_reason_and_set_aside(area: LandingArea) -> None:
    area.append(NOON, "good", samples(1))
    with area.location.writing(f"{DAY}/20270115T120000000Z-garbage.parquet") as stream:
        stream.write(b"PAR1, not")
    _write(area, "20270115T120000001Z-foreign.parquet", samples(2).drop_columns(["byte_out"]))
    wrong = SAMPLE_SCHEMA.get_field_index("msg_in")
    _write(area, "20270115T120000002Z-text.parquet", samples(3).set_column(wrong, "msg_in", pa.array(["3"])))
    _write(area, "export.parquet", samples(4))

    files, foreign = area.files(NOON - HOUR, NOON + HOUR)
    examined = area.examine(files)

    rejected = {r.path.split("Z-")[-1]: r.reason for r in (*foreign, *examined.rejected)}
    assert rejected.pop("garbage.parquet").startswith("not readable as Parquet")
    assert rejected == {
        "foreign.parquet": "column byte_out is missing",
        "text.parquet": "column msg_in is string, not int64",
        f"{DAY}/export.parquet": "the name is not <tick>-<collector>.parquet",
    }
    everything = (*foreign, *examined.rejected)
    assert area.quarantine(everything) == [r.path for r in everything]
    assert area.quarantine(everything) == [], "another run was first"
    assert area.files(NOON - HOUR, NOON + HOUR) == (list(examined.files), [])
    kept = area.location.files("_quarantine")
    assert len(kept) == len(everything)


@pytest.mark.parametrize(
    ("target", "reason"),
    [("/proc/self/mem", "Input/output error"), ("/proc/sys/vm/compact_memory", "Permission denied")],
    ids=["an error of the medium", "no permission"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="Linux has files that even root may not read")
def test_what_the_storage_does_not_give_is_named_and_left_where_it_is(
    tmp_path: Path, target: str, reason: str
) -> None:
    area = LandingArea(str(tmp_path))
    area.append(NOON, "good", samples(1))
    closed = tmp_path / DAY / "20270115T120000000Z-closed.parquet"
    closed.symlink_to(target)

    examined = area.examine(area.files(NOON, NOON)[0])

    assert [file.name for file in examined.files] == ["20270115T120000000Z-good.parquet"]
    [unreadable] = examined.unreadable
    assert unreadable.path == f"{DAY}/{closed.name}"
    assert reason in unreadable.reason
    assert examined.rejected == ()
    assert closed.is_symlink()


def test_storage_that_is_away_is_no_fault_of_the_files(
    area: LandingArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    area.append(NOON, "c", samples(1))
    files, _ = area.files(NOON, NOON)

    def away(*_arguments: object) -> None:
        raise OSError("the storage does not answer")

    for name in ("open", "directories"):
        monkeypatch.setattr(area.location, name, away)

    with pytest.raises(OSError, match="does not answer"):
        area.examine(files)


def test_a_file_that_may_not_be_moved_aside_is_named_all_the_same(
    area: LandingArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError("the directory is read-only")

    monkeypatch.setattr(area.location, "move", refuse)

    assert area.quarantine([RejectedFile("day=2027-01-15/notes.txt", "its name")]) == [
        "day=2027-01-15/notes.txt"
    ]


def test_more_columns_do_no_harm(area: LandingArea) -> None:
    _write(area, "20270115T120000000Z-more.parquet", samples(1).append_column("note", pa.array(["x"])))

    assert counts(area) == [1]


def test_a_file_that_vanished_is_no_fault(area: LandingArea) -> None:
    area.append(NOON, "c", samples(1))
    files, _ = area.files(NOON, NOON)
    area.location.delete(files[0].path)

    examined = area.examine(files)

    assert (examined.files, examined.rejected) == ((), ())


def test_old_days_are_deleted_whole(area: LandingArea) -> None:
    for day in range(3):
        area.append(NOON - day * 24 * HOUR, "c", samples(day))

    assert area.expire(date(2027, 1, 14)) == ["day=2027-01-13"]
    assert counts(area, NOON - 72 * HOUR) == [0, 1]


def test_old_days_are_deleted_in_the_directory_of_the_area(area: LandingArea, url: str) -> None:
    own, other = LandingArea(url, parent="own"), LandingArea(url, parent="other")
    for one in (area, own, other):
        one.append(NOON, "c", samples(1))

    assert own.expire(date(2027, 1, 16)) == [f"own/{DAY}"]
    assert (counts(area), counts(own), counts(other)) == ([1], [], [1])
