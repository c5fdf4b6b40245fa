"""History: rates appear under their window when their run was merged, and are read back by time."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from controller.landing.history import RateHistory
from controller.landing.schemas import RATE_SCHEMA
from controller.landing.scratch import FinishedRun, attempt_of, sweep
from tests.unit.landing.conftest import DAY, HOUR, NOON

LONG = "airflow-cleave_load_aggregation-" + "backfill_of_team_orders_" * 9
"""Airflow allows 250 characters for the id of a run."""


@pytest.fixture
def history(url: str) -> RateHistory:
    """An empty history."""
    return RateHistory(url)


def rates(topic_id: int) -> pa.Table:
    row = dict.fromkeys(RATE_SCHEMA.names, 1) | {"topic_id": topic_id, "source": "broker"}
    return pa.Table.from_pylist([row], RATE_SCHEMA)


def keep(history: RateHistory, window_end_ms: int, topic_id: int) -> None:
    scratch = history.scratch(f"run-{topic_id}")
    scratch.write("rates", rates(topic_id))
    assert history.read(window_end_ms, window_end_ms).num_rows == 0, "not before it is published"
    assert scratch.rate_rows() == 1
    history.publish(scratch, window_end_ms)
    scratch.discard()


def test_windows_are_read_back_by_the_instant_they_ended_at(history: RateHistory) -> None:
    ends = [NOON - 24 * HOUR, NOON, NOON + 60_000]
    for number, end in enumerate(ends):
        keep(history, end, number)

    found = history.read(NOON - 24 * HOUR, NOON)

    assert [(row["topic_id"], row["window_end_ms"]) for row in found.to_pylist()] == [
        (0, ends[0]),
        (1, ends[1]),
    ]
    assert found.select(RATE_SCHEMA.names).slice(1).equals(rates(1))


@pytest.mark.parametrize(
    "stray", ["notes.txt", "20270115T120000000Z-c.parquet", "window_end=soon/a.parquet", "x/a/b.parquet"]
)
def test_files_that_are_none_of_a_window_are_left_out(history: RateHistory, stray: str) -> None:
    keep(history, NOON, 1)
    with history.location.writing(f"{DAY}/{stray}") as stream:
        stream.write(b"no rates")

    assert [row["topic_id"] for row in history.read(NOON - HOUR, NOON + HOUR).to_pylist()] == [1]


def test_scratch_holds_what_is_handed_over_until_it_is_discarded(history: RateHistory) -> None:
    scratch = history.scratch("run")
    scratch.write("changes", rates(7))

    assert scratch.read("changes", RATE_SCHEMA).equals(rates(7))
    assert scratch.read("nothing", RATE_SCHEMA).num_rows == 0
    assert scratch.url == history.location.url("_runs/run")
    scratch.discard()
    assert scratch.read("changes", RATE_SCHEMA).num_rows == 0


def test_publishing_that_was_broken_off_goes_on_and_doubles_nothing(
    history: RateHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = history.scratch("run")
    for name in ("part-0", "part-1", "part-2"):
        with history.location.writing(f"_runs/run/rates/{name}.parquet") as stream:
            pq.write_table(rates(int(name[-1])), stream)
    move, moves = history.location.move, iter([True, False])

    def die(path: str, to: str) -> None:
        if not next(moves):
            raise KeyboardInterrupt
        move(path, to)

    monkeypatch.setattr(history.location, "move", die)
    with pytest.raises(KeyboardInterrupt):
        history.publish(scratch, NOON)
    monkeypatch.undo()

    for _ in range(2):
        history.publish(scratch, NOON)

        assert sorted(row["topic_id"] for row in history.read(NOON, NOON).to_pylist()) == [0, 1, 2]


def test_rates_of_two_attempts_at_one_window_are_not_mixed(history: RateHistory) -> None:
    keep(history, NOON, 1)
    second = history.scratch("second")
    second.write("rates", rates(2))

    history.publish(second, NOON)

    assert [row["topic_id"] for row in history.read(NOON, NOON).to_pylist()] == [1]


def test_a_run_taken_over_by_somebody_else_finds_its_files_gone_and_goes_on(
    history: RateHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = history.scratch("run")
    scratch.write("rates", rates(1))
    stale = scratch.rate_files()
    history.publish(scratch, NOON)
    monkeypatch.setattr(scratch, "rate_files", lambda: stale)

    history.publish(scratch, NOON)

    assert history.read(NOON, NOON).num_rows == 1


def test_what_is_left_over_is_told_by_its_note(history: RateHistory) -> None:
    history.scratch("computing").write("rates", rates(1))
    whole = history.scratch("whole")
    whole.write("rates", rates(2))
    whole.finish("scheduled__1", NOON)
    with history.location.writing("_runs/torn/finished.json") as stream:
        stream.write(b'{"run_id": ')

    assert [note for _, note in history.left_over()] == [FinishedRun("scheduled__1", NOON)]
    whole.discard()
    assert history.left_over() == []


def test_a_run_whose_id_is_longer_than_a_file_name_may_be_has_a_directory_of_its_own(
    history: RateHistory,
) -> None:
    for run_id in (LONG, LONG + "ü" * 200, LONG + "ü" * 200 + "x"):
        scratch = history.scratch(attempt_of(run_id))
        scratch.write("rates", rates(1))
        scratch.finish(run_id, NOON)

    found = {note.run_id for _, note in history.left_over()}
    assert found == {LONG, LONG + "ü" * 200, LONG + "ü" * 200 + "x"}


def test_two_attempts_of_a_run_have_two_directories() -> None:
    first, second = attempt_of("run"), attempt_of("run")
    assert first != second
    assert first.startswith("run-")


def test_scratch_that_nobody_wrote_to_for_long_is_swept(tmp_path: Path) -> None:
    history = RateHistory(str(tmp_path))
    old, busy = history.scratch("old"), history.scratch("busy")
    for scratch in (old, busy):
        scratch.write("rates", rates(1))
        scratch.finish("run", NOON)
    (tmp_path / "_runs" / "empty").mkdir()
    for path in tmp_path.glob("_runs/*/**"):
        os.utime(path, (1, 1))
    for path in tmp_path.glob("_runs/*/**/*"):
        os.utime(path, (1, 1))
    busy.write("changes", rates(1))

    assert sweep(history.location, 1_000_000_000_000) == ["_runs/empty", "_runs/old"]
    assert [path.name for path in (tmp_path / "_runs").iterdir()] == ["busy"]
    assert sweep(RateHistory(str(tmp_path / "none")).location, NOON) == []


def test_old_days_are_deleted(history: RateHistory) -> None:
    keep(history, NOON - 24 * HOUR, 0)
    keep(history, NOON, 1)

    assert history.expire(date(2027, 1, 15)) == ["day=2027-01-14"]
    assert [row["topic_id"] for row in history.read(NOON - 24 * HOUR, NOON).to_pylist()] == [1]
