"""Compaction under readers, writers, crashes and other compactors: every reader finds every sample once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.domain.errors import InvalidInput
from controller.landing import compaction
from controller.landing.area import REPLACES, LandingArea
from controller.landing.compaction import compact
from controller.landing.schemas import KEY_COUNT_SCHEMA, SAMPLE_SCHEMA
from tests.support.drawn import cases
from tests.unit.landing.conftest import HOUR, NOON, counts, samples

LATER = NOON + 3 * HOUR
GRACE = compaction.DEFAULT_GRACE_MS


def land(area: LandingArea, *minutes: int, collector: str = "c") -> None:
    """One sample a tick, so many minutes after noon, counted alike."""
    for minute in minutes:
        area.append(NOON + minute * 60_000, collector, samples(minute))


def test_the_files_of_an_hour_become_one(area: LandingArea) -> None:
    land(area, 0, 1, 2, 61, 62)

    done = compact(area, LATER)

    assert (len(done.written), done.replaced, done.deleted) == (2, 5, 0)
    assert counts(area) == [0, 1, 2, 61, 62]
    assert len(area.files(NOON, LATER)[0]) == 2
    assert counts(area, NOON + HOUR, LATER) == [61, 62]


@pytest.mark.parametrize(("schema", "parent"), [(SAMPLE_SCHEMA, "keys"), (KEY_COUNT_SCHEMA, "")])
def test_an_area_that_is_not_one_of_counter_samples_is_refused(
    area: LandingArea, schema: pa.Schema, parent: str
) -> None:
    land(area, 0, 1)

    with pytest.raises(InvalidInput, match="cannot compact"):
        compact(LandingArea(area.location, schema, parent), LATER)

    assert len(area.files(NOON, LATER)[0]) == 2


def test_an_hour_that_has_not_settled_is_left_alone(area: LandingArea) -> None:
    land(area, 0, 1)

    assert compact(area, NOON + 2 * HOUR - 1).written == ()
    assert len(compact(area, NOON + 2 * HOUR).written) == 1


def test_replaced_files_go_when_no_reader_can_still_want_them(area: LandingArea) -> None:
    land(area, 0, 1, 2)
    listed, _ = area.files(NOON, LATER)
    compact(area, LATER)

    assert compact(area, LATER + GRACE - 1).deleted == 0
    assert len(list(area.batches(listed, ["msg_in"]))) == 3, "a listing from before still reads"
    assert compact(area, LATER + GRACE).deleted == 3
    assert [file.path for file in area.location.files()] == [f.path for f in area.files(NOON, LATER)[0]]
    assert counts(area) == [0, 1, 2]
    assert compact(area, LATER + 2 * GRACE) == compaction.CompactionReport()


def test_a_file_that_lands_late_counts_and_is_compacted_later(area: LandingArea) -> None:
    land(area, 0, 2)
    compact(area, LATER)
    land(area, 1, 3)

    assert counts(area) == [0, 1, 2, 3]
    compact(area, LATER)
    assert counts(area) == [0, 1, 2, 3]
    compact(area, LATER + GRACE)
    assert counts(area) == [0, 1, 2, 3]
    assert len(area.location.files()) == 2


def test_a_file_that_cannot_be_read_is_set_aside_and_the_rest_goes_on(area: LandingArea) -> None:
    land(area, 0, 1)
    bad = "day=2027-01-15/20270115T120200000Z-bad.parquet"
    with area.location.writing(bad) as stream:
        stream.write(b"nothing")

    done = compact(area, LATER)

    assert [rejected.path for rejected in done.rejected] == [bad]
    assert (counts(area), len(done.written)) == ([0, 1], 1)


@pytest.mark.parametrize(
    "note", [b"{", b"\xff", b"[]", b"{}", b'{"names": 1, "written_at_ms": 0}', b'{"names": [[]]}']
)
def test_a_compacted_file_with_a_damaged_note_replaces_nothing_until_it_is_written_again(
    area: LandingArea, note: bytes
) -> None:
    land(area, 0, 1)
    [path] = compact(area, LATER).written
    with area.location.open(path) as stream:
        table = pq.read_table(stream)
    with area.location.writing(path) as stream:
        pq.write_table(table.replace_schema_metadata({REPLACES: note}), stream)

    assert set(counts(area)) == {0, 1}
    assert compact(area, LATER + GRACE).deleted == 0, "the small files may be the only ones that are whole"
    assert counts(area) == [0, 1]
    assert compact(area, LATER + 2 * GRACE).deleted == 2
    assert counts(area) == [0, 1]


def test_large_hours_become_several_files(area: LandingArea) -> None:
    land(area, *range(6))
    size = area.files(NOON, LATER)[0][0].size_bytes

    assert len(compact(area, LATER, target_bytes=2 * size + size // 2).written) == 3
    assert counts(area) == list(range(6))


def test_rows_with_a_missing_value_are_left_out(area: LandingArea) -> None:
    land(area, 0)
    hole = samples(1).set_column(5, "msg_in", pa.array([None], pa.int64()))
    with area.location.writing("day=2027-01-15/20270115T120100000Z-h.parquet") as stream:
        pq.write_table(hole, stream)

    compact(area, LATER)

    assert counts(area) == [0]


def test_a_compactor_that_dies_half_way_leaves_everything_as_it_was(
    area: LandingArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(area, 0, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(compaction, "_flush", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            compact(area, LATER)

    assert counts(area) == [0, 1, 2]
    compact(area, LATER)
    assert counts(area) == [0, 1, 2]


def test_a_draft_that_a_killed_writer_left_is_deleted_when_it_is_old(area: LandingArea) -> None:
    land(area, 0)
    if area.location.files()[0].modified_at_ms == 0:
        pytest.skip("this storage does not say when a file was written")
    with area.location.writing("day=2027-01-15/kept") as stream:
        stream.write(b"x")
    area.location.move("day=2027-01-15/kept", "day=2027-01-15/.draft")
    written_at_ms = area.location.hidden_files("day=2027-01-15")[0].modified_at_ms
    settle = max(0, NOON - written_at_ms)  # the fixture's noon lies in the clock's future

    compaction._delete_drafts(area, "day=2027-01-15", written_at_ms - 1)
    assert len(area.location.hidden_files("day=2027-01-15")) == 1
    compaction._delete_drafts(area, "day=2027-01-15", written_at_ms + settle)
    assert area.location.hidden_files("day=2027-01-15") == []


def test_two_compactors_of_the_same_files_write_the_same_file(area: LandingArea) -> None:
    land(area, 0, 1, 2)
    group, _ = area.files(NOON, LATER)

    paths = {compaction._write(area, group, LATER), compaction._write(area, group, LATER + 1)}

    assert len(paths) == 1
    assert counts(area) == [0, 1, 2]


def test_of_two_compactors_one_of_which_saw_a_file_more_the_other_does_not_count(area: LandingArea) -> None:
    land(area, 0, 1)
    before, _ = area.files(NOON, LATER)
    land(area, 2)
    after, _ = area.files(NOON, LATER)

    compaction._write(area, before, LATER)
    compaction._write(area, after, LATER)

    assert counts(area) == [0, 1, 2]
    compact(area, LATER + GRACE)
    assert counts(area) == [0, 1, 2]


def test_a_damaged_compacted_file_hides_nothing(area: LandingArea) -> None:
    land(area, 0, 1, 2)
    path = compact(area, LATER).written[0]
    area.location.delete(path)
    with area.location.writing(path) as stream:
        stream.write(b"torn")

    assert counts(area) == [0, 1, 2]


@settings(
    max_examples=cases(10, 80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("land"), st.integers(0, 179)),
            st.tuples(st.just("compact"), st.integers(0, 4 * GRACE)),
        ),
        max_size=25,
    )
)
def test_whatever_lands_and_is_compacted_in_whatever_order(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]]
) -> None:
    area = LandingArea(str(tmp_path_factory.mktemp("landing")))
    landed: list[int] = []
    now_ms = LATER
    for number, (act, value) in enumerate(acts):
        if act == "land":
            area.append(NOON + value * 60_000, f"c{number}", samples(value))
            landed.append(value)
        else:
            now_ms += value
            compact(area, now_ms)
        assert counts(area) == sorted(landed)


def test_readers_beside_a_compactor_find_every_sample_once(tmp_path: Path) -> None:
    area = LandingArea(str(tmp_path))  # files in fsspec's memory share one position among their readers
    expected = list(range(0, 120, 3))
    land(area, *expected)
    stop = Event()

    def read() -> list[list[int]]:
        found = [counts(area)]
        while not stop.is_set():
            found.append(counts(area))
        return found

    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for number in range(4):
                compact(area, LATER + number, grace_ms=10**9)
        finally:
            stop.set()
        assert all(found == expected for reader in readers for found in reader.result(60))
