"""A run of the aggregation, from landed files to load records, on real files and with the loader's own login."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from controller.clock import to_ms
from controller.domain.errors import Retryable
from controller.domain.load_window import LoadWindow
from controller.domain.policy import PolicyOverride
from controller.landing.schemas import SAMPLE_SCHEMA
from controller.landing.scratch import Scratch
from controller.services.load_aggregation import AggregationResult, Landed, SqlEngine, upcoming
from controller.store.postgres.clock import database_now
from controller.store.topics import policies
from tests.support.aggregation import BROKER, END_MS, MINUTE_MS, OTHER, Run, loading
from tests.support.bench import Bench


@pytest.fixture
def run(bench: Bench, tmp_path: Path) -> Iterator[Run]:
    """A live topic; the loader logs in as itself."""
    bench.topic_with(segments=2, subscriptions=())
    with loading(bench, pool_size=5) as store:
        yield Run(bench, store, tmp_path, bench.topic_id)


def test_rates_are_exact_and_kept_as_history(run: Run) -> None:
    run.steady(100)
    run.steady(7, segment_id=1)
    result = run.aggregate("first")

    assert (result.applied, result.segments, result.written, result.outrun) == (True, 2, 2, 0)
    assert (result.files, result.samples, result.engine) == (2, 16, "sql")
    record = run.record()
    assert record is not None
    assert [record[m] for m in ("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out")] == [
        100,
        10_000,
        0,
        0,
    ]
    assert (to_ms(record["modified_at"]), record["source"]) == (END_MS, BROKER)
    kept = run.history.read(END_MS, END_MS).to_pylist()
    assert [(row["segment_id"], row["msg_rate_in"], row["covered_ms"]) for row in kept] == [
        (0, 100, 60_000),
        (1, 7, 60_000),
    ]
    assert list((run.directory / "history").glob("_runs/*")) == [], "nothing of the run is left"


@pytest.mark.parametrize(
    ("files", "rate"),
    [
        ([[(-60, 1_000), (-40, 3_000), (-20, 5_000), (-10, 50), (0, 100)]], 100.0),
        ([[(-60, 0), (-30, 0), (0, 0)]], 0.0),
        ([[(-60, 0), (-30, 3_000), (0, 6_000)], [(-60, 0), (-30, 3_000), (0, 6_000)]], 100.0),
        ([[(0, 6_000)], [(-60, 0)], [(-30, 3_000)]], 100.0),
        ([[(0, 6_000), (-60, 0), (-30, 3_000)]], 100.0),
        ([[(-90, 0), (0, 9_000)]], 100.0),
        ([[(-50, 5_000_000), (0, 5_005_000)]], 100.0),
        ([[(-60, 0), (0, 6_000), (30, 900_000)]], 100.0),
    ],
    ids=[
        "a counter that went back",
        "an idle log",
        "a file that landed twice",
        "files out of order",
        "rows out of order",
        "an interval over the window's edge",
        "a source that began inside the window",
        "samples from after the window",
    ],
)
def test_counters_become_one_rate(run: Run, files: list[list[tuple[float, int]]], rate: float) -> None:
    for samples in files:
        run.land(*samples)
    run.aggregate()
    assert run.rate() == pytest.approx(rate)


def test_an_owners_move_adds_up_and_its_gap_is_left_out(run: Run) -> None:
    run.land((-60, 50_000), (-40, 52_000))
    run.land((-30, 0), (0, 3_000), source=OTHER)
    run.aggregate()
    assert run.rate() == pytest.approx((2_000 + 3_000) / 50)
    record = run.record()
    assert record is not None
    assert record["source"] == OTHER


def test_two_collectors_side_by_side_are_not_added_up(run: Run) -> None:
    """A second one is started: it reads 50 ms later, and its clock is behind."""
    run.land((-60, 0), (-40, 2_000), (-20, 4_000), (0, 6_000), reader="old")
    run.land((-40.03, 2_005), (-20.03, 4_005), (-0.03, 6_005), reader="new")
    run.aggregate()
    assert run.rate() == 100.0


def test_counters_that_always_went_back_are_no_rate_and_a_reason(run: Run) -> None:
    run.land((-60, 9_000), (-30, 3_000), (0, 1_000))
    run.steady(100, segment_id=1)
    run.aggregate()
    assert run.record() is None
    assert run.rate(1) == 100.0
    [(batch, subject, topic_id, reason)] = run.bench.rows(
        "SELECT batch, subject, topic_id, reason FROM inspect.set_aside WHERE is_current"
    )
    assert (batch, subject, topic_id) == ("load", f"segment 0 of topic {run.topic_id}", run.topic_id)
    assert "decreased" in reason
    history = run.history.read(END_MS, END_MS)
    assert history["segment_id"].to_pylist() == [1]


def test_a_late_sample_is_in_the_next_windows_rate(run: Run) -> None:
    run.land((-60, 0), (0, 6_000))
    run.aggregate()
    run.land((30, 12_000))  # arrives with what follows it
    run.land((60, 18_000))
    run.aggregate(minutes=1)
    assert run.rate() == pytest.approx(200.0)


def test_a_first_sample_is_a_base_line_and_no_load(run: Run) -> None:
    run.land((-10, 5_000_000))
    result = run.aggregate()
    assert (result.applied, result.segments) == (True, 0)
    assert run.record() is None


def test_a_run_without_files_changes_nothing(run: Run) -> None:
    assert not run.aggregate().applied
    assert run.bench.scalar("SELECT count(*) FROM cleave.load_run") == 0


# What is news.


@pytest.mark.parametrize(
    ("before", "after", "is_written"),
    [(100, 120, False), (100, 130, True), (9_900, 10_100, True), (1, 2, False)],
    ids=["within a quarter", "beyond a quarter", "over the split threshold", "1 to 2 a second"],
)
def test_a_record_is_rewritten_for_news_only(run: Run, before: int, after: int, is_written: bool) -> None:
    assert rewritten(run, before, after) is is_written


@pytest.mark.parametrize(
    ("before", "after", "is_written"),
    [(100, 120, False), (100, 130, True), (9_900, 10_100, False), (1, 2, True)],
    ids=["within a quarter", "beyond a quarter", "over the split threshold", "1 to 2 a second"],
)
def test_under_strict_pulsar_a_record_is_rewritten_as_pulsars_reporter_does(
    run: Run, before: int, after: int, is_written: bool
) -> None:
    run.bench.store.in_transaction(policies.set_topic, run.topic_id, PolicyOverride(strict_pulsar=True))

    assert rewritten(run, before, after) is is_written


def rewritten(run: Run, before: int, after: int) -> bool:
    """Whether the record of one rate is written anew, at its instant, when the next window finds another."""
    run.steady(before)
    run.aggregate()
    first = run.record()
    run.land((0, 0), (30, after * 30), (60, after * 60), source=BROKER + "b")
    run.bench.execute("UPDATE cleave.segment_load SET source = source || 'b'")
    run.aggregate(minutes=1)
    record = run.record()
    assert record is not None
    assert first is not None
    assert run.last_report_second(BROKER + "b") == 60, "that it was heard is known in any case"
    assert (record["modified_at"] != first["modified_at"]) is (record["row_version"] != first["row_version"])
    return bool(record["row_version"] != first["row_version"])


def test_a_nearly_idle_segment_stays_cold_through_its_jitter(run: Run) -> None:
    run.steady(20)
    run.aggregate()
    run.land((0, 1_400), (30, 2_600), (60, 3_800))
    run.aggregate(minutes=1)
    record = run.record()
    assert record is not None
    assert (record["msg_rate_in"], to_ms(record["modified_at"])) == (40, END_MS + MINUTE_MS)
    assert to_ms(record["cold_since"]) == END_MS


# Silence.


def test_a_dead_reporter_makes_nothing_cold_and_nothing_fresh(run: Run) -> None:
    run.steady(2_000)
    run.steady(10, segment_id=1, source=OTHER)
    run.aggregate()
    before = run.record()
    run.land((30, 1_000), (60, 1_300), segment_id=1, source=OTHER)
    assert run.aggregate(minutes=1).applied
    assert run.record() == before
    assert (run.last_report_second(BROKER), run.last_report_second(OTHER)) == (0, 60)


def test_a_source_that_speaks_of_others_only_leaves_a_segment_silent_from_the_last_it_said(run: Run) -> None:
    run.steady(2_000)
    run.steady(10, segment_id=1)
    run.aggregate()
    for minutes in (1, 2):
        end = minutes * 60
        run.land((end - 60, 0), (end, 600), segment_id=1)
        run.aggregate(minutes=minutes)
    record = run.record()
    assert record is not None
    assert (record["msg_rate_in"], to_ms(record["silent_since"]), record["row_version"]) == (2_000, END_MS, 2)
    assert to_ms(record["modified_at"]) == END_MS

    run.land((120, 0), (180, 120_000))
    run.aggregate(minutes=3)
    record = run.record()
    assert record is not None
    assert (record["silent_since"], record["row_version"]) == (None, 3)


# Files that are none.


def write(run: Run, name: str, content: bytes | pa.Table) -> str:
    """A file in the window's day of the landing area."""
    path = run.directory / "landing" / "day=2026-05-17" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(content, path)
    return f"day=2026-05-17/{name}"


def land_broken_pages(run: Run) -> Path:
    """Land a file with a sound footer and broken pages."""
    broken = run.directory / "landing" / run.land((-60, 0), (0, 600), segment_id=1)
    content = bytearray(broken.read_bytes())
    content[4:200] = b"\xff" * 196
    broken.write_bytes(content)
    return broken


def test_unusable_files_are_set_aside_by_name_and_the_rest_goes_on(run: Run) -> None:
    run.steady(100)
    bad = {
        write(run, "20260517T115950000Z-garbage.parquet", b"PAR1 is not enough"),
        write(run, "20260517T115951000Z-empty.parquet", b""),
        write(run, "20260517T115952000Z-foreign.parquet", pa.table({"topic_id": [1]})),
        write(run, "20260517T115953000Z-text.parquet", _retyped("msg_in", pa.string())),
        write(run, "notes.txt", b"hello"),
    }
    result = run.aggregate()

    assert set(result.quarantined) == bad
    assert run.rate() == 100
    assert set(run.bench.scalar("SELECT quarantined FROM cleave.load_run")) == bad
    aside = run.directory / "landing" / "_quarantine"
    assert all((aside / path).exists() for path in bad)
    assert run.aggregate(minutes=1).quarantined == ()


def test_a_file_with_a_sound_footer_and_broken_pages_is_set_aside(run: Run) -> None:
    run.steady(100)
    broken = land_broken_pages(run)
    result = run.aggregate()
    assert [Path(path).name for path in result.quarantined] == [broken.name]
    assert run.rate() == 100


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has files that even root may not read")
def test_a_file_that_may_not_be_read_is_named_and_the_rest_goes_on(run: Run) -> None:
    run.steady(100)
    closed = run.directory / "landing" / "day=2026-05-17" / "20260517T115950000Z-closed.parquet"
    closed.symlink_to("/proc/sys/vm/compact_memory")

    result = run.aggregate()

    assert (result.applied, result.quarantined) == (True, (f"day=2026-05-17/{closed.name}",))
    assert run.rate() == 100
    assert run.bench.scalar("SELECT quarantined FROM cleave.load_run") == list(result.quarantined)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has files that even root may not read")
def test_a_window_of_which_nothing_may_be_read_is_no_success(run: Run) -> None:
    closed = run.directory / "landing" / "day=2026-05-17" / "20260517T115950000Z-closed.parquet"
    closed.parent.mkdir(parents=True)
    closed.symlink_to("/proc/sys/vm/compact_memory")

    with pytest.raises(Retryable, match=r"no sample file .*closed\.parquet: .*Permission denied"):
        run.aggregate()


def test_a_row_with_a_missing_value_is_left_out(run: Run) -> None:
    run.steady(100)
    nullable = pa.schema([field.with_nullable(True) for field in SAMPLE_SCHEMA])
    row = dict.fromkeys(nullable.names) | {"topic_id": run.topic_id, "segment_id": 0}
    at = datetime.fromtimestamp(END_MS / 1000 - 5, UTC)
    rows = [row, row | {"instant": at}, row | {"instant": at, "source": BROKER}]
    write(run, "20260517T115950000Z-holes.parquet", pa.Table.from_pylist(rows, nullable))
    assert run.aggregate().applied
    assert run.rate() == 100


def _retyped(name: str, kind: pa.DataType) -> pa.Table:
    index = SAMPLE_SCHEMA.get_field_index(name)
    return SAMPLE_SCHEMA.set(index, pa.field(name, kind)).empty_table()


# Repeats and overlaps.


def test_a_repeat_changes_nothing_under_the_same_id_or_another(run: Run) -> None:
    run.steady(100)
    assert run.aggregate("once").applied
    before = run.record()
    run.steady(9_000, source=OTHER)
    for run_id in ("once", "another"):
        assert not run.aggregate(run_id).applied
    assert run.record() == before
    assert run.last_report_second(BROKER) == 0
    assert run.bench.scalar("SELECT count(*) FROM cleave.load_run") == 1


def test_a_window_behind_the_watermark_changes_nothing(run: Run) -> None:
    run.steady(100, begin=-130, end=60)
    assert run.aggregate(minutes=1).applied
    before = run.record()
    with capture_logs() as lines:
        assert not run.aggregate("late").applied
    assert run.record() == before
    assert run.history.read(END_MS, END_MS).num_rows == 0
    [line] = lines
    assert line["event"] == "window not aggregated, because it does not end after the last merged window"
    assert (line["window_end_ms"], line["last_window_end_ms"]) == (END_MS, END_MS + MINUTE_MS)


def test_load_goes_on_after_the_databases_clock_went_back(run: Run) -> None:
    """By ten minutes, after the run of the last window."""
    run.steady(100, begin=530, end=600)
    run.steady(10, begin=530, end=600, segment_id=1, source=OTHER)
    run.aggregate("from the future", minutes=10)
    run.bench.execute("UPDATE cleave.load_run SET applied_at = applied_at + interval '10 minutes'")
    assert run.bench.scalar("SELECT load_age_seconds FROM inspect.health") is None
    run.steady(50_000, begin=-10, end=120, reader="c after its clock was set")

    assert [run.aggregate(minutes=minutes).applied for minutes in (1, 2)] == [True, True]

    assert run.rate() == 50_000
    assert (run.last_report_second(BROKER), run.last_report_second(OTHER)) == (120, 60)
    cold = run.record(1)
    assert cold is not None
    assert (to_ms(cold["cold_since"]), to_ms(cold["modified_at"])) == (END_MS + MINUTE_MS,) * 2
    assert run.bench.scalar("SELECT count(*) FROM cleave.load_run WHERE run_id = 'from the future'") == 0


def test_files_from_the_future_are_read_no_more_after_the_databases_clock_went_back(run: Run) -> None:
    """They would be read once the clock reaches their ticks, with the samples of that time."""
    run.steady(100, begin=-70, end=120)
    run.aggregate()
    now_ms = to_ms(run.bench.store.in_transaction(database_now))
    samples = SAMPLE_SCHEMA.empty_table()
    near, far, tomorrow = (
        run.area.append(now_ms + seconds * 1000, "c", samples) for seconds in (30, 600, 86_400)
    )
    assert run.aggregate(minutes=1).quarantined == ()
    run.bench.execute("UPDATE cleave.load_run SET applied_at = applied_at + interval '10 minutes'")

    assert run.aggregate(minutes=2).quarantined == (far, tomorrow)

    left = [path.name for path in (run.directory / "landing").glob("day=*/*")]
    assert [path for path in (near, far, tomorrow) if path.rpartition("/")[2] in left] == [near]


def test_a_segment_that_was_silent_when_the_clock_went_back_is_measured_again(run: Run) -> None:
    run.steady(100, begin=-10, end=60)
    run.aggregate(minutes=1)
    run.bench.execute("""
        WITH run AS (UPDATE cleave.load_run SET applied_at = clock_timestamp() + interval '10 minutes')
        UPDATE cleave.segment_load SET silent_since = modified_at + interval '9 minutes', source = 'gone'
    """)
    run.steady(7_000, begin=50, end=180, source=OTHER)

    for minutes in (2, 3):
        run.aggregate(minutes=minutes)

    record = run.record()
    assert record is not None
    assert (record["msg_rate_in"], record["silent_since"]) == (7_000, None)


class OvertakenEngine(SqlEngine):
    """Lets another run pass by between its own baseline and its merge."""

    def __init__(self, run: Run, minutes: int) -> None:
        super().__init__(run.store)
        self._run, self._minutes = run, minutes

    def compute(self, landed: Landed, scratch: Scratch, window: LoadWindow) -> None:
        """Compute, then let the other merge."""
        super().compute(landed, scratch, window)
        assert self._run.aggregate("the other", minutes=self._minutes).applied


@pytest.mark.parametrize("minutes", [0, 1], ids=["of the same window", "of a newer window"])
def test_a_run_that_was_overtaken_changes_nothing(run: Run, minutes: int) -> None:
    run.steady(100, begin=-130, end=60)
    result = run.aggregate("slow", engine=OvertakenEngine(run, minutes))
    assert (result.applied, result.written) == (False, 0)
    record = run.record()
    assert record is not None
    assert (record["row_version"], to_ms(record["modified_at"])) == (1, END_MS + minutes * MINUTE_MS)
    assert run.bench.scalar("SELECT array_agg(run_id) FROM cleave.load_run") == ["the other"]
    assert run.bench.scalar("SELECT count(*) FROM staging.load_row") == 0
    assert run.history.read(END_MS, END_MS + MINUTE_MS).num_rows == 1


def test_a_newer_run_leaves_alone_what_an_older_one_wrote_meanwhile(run: Run) -> None:
    run.steady(100, begin=-130, end=60)
    result = run.aggregate("newer", minutes=1, engine=OvertakenEngine(run, 0))
    assert (result.applied, result.written, result.outrun) == (True, 0, 1)
    record = run.record()
    assert record is not None
    assert to_ms(record["modified_at"]) == END_MS


def test_runs_at_the_same_time_merge_one_after_the_other(run: Run) -> None:
    run.steady(100)
    results: list[AggregationResult] = []
    threads = [Thread(target=lambda n=n: results.append(run.aggregate(f"run-{n}"))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.applied for result in results) == [False, False, False, True]
    assert run.history.read(END_MS, END_MS).num_rows == 1


class FailingEngine(SqlEngine):
    """An engine that is away after it wrote half of its files."""

    def compute(self, landed: Landed, scratch: Scratch, window: LoadWindow) -> None:
        """Half of it."""
        super().compute(landed, scratch, window)
        raise Retryable("the engine is away")


class LosingEngine(SqlEngine):
    """An engine that loses an executor over each file that it cannot read."""

    def compute(self, landed: Landed, scratch: Scratch, window: LoadWindow) -> None:
        """The error is one of the engine, not of the file."""
        try:
            super().compute(landed, scratch, window)
        except Exception as error:
            raise Retryable("an executor was lost") from error


def test_a_broken_file_is_looked_for_even_if_the_engine_blames_an_executor(run: Run) -> None:
    """Else every run would lose its executors over the file."""
    run.steady(100)
    broken = land_broken_pages(run)

    result = run.aggregate(engine=LosingEngine(run.store))

    assert (result.applied, [Path(path).name for path in result.quarantined]) == (True, [broken.name])


def test_a_run_that_failed_is_repeated_under_its_id(run: Run) -> None:
    run.steady(100)
    with pytest.raises(Retryable):
        run.aggregate("again", engine=FailingEngine(run.store))
    assert run.record() is None
    assert list((run.directory / "history").glob("_runs/*")) == []
    assert run.aggregate("again").applied
    assert run.rate() == 100


def test_a_run_may_have_the_longest_id_that_airflow_allows(run: Run) -> None:
    run.steady(100)
    assert run.aggregate("r" * 300).applied
    assert run.rate() == 100


def test_a_dry_run_names_the_files_it_would_read(run: Run) -> None:
    """Files of the time before the window are among them, because intervals may begin there."""
    run.land((-600, 1))
    paths = [run.land((at, 1)) for at in (-170, -100, 0, 50)]
    window = LoadWindow.ending_at(END_MS, 60.0)

    assert [file.path for file in upcoming(run.area, window)] == paths
    assert run.aggregate().files == len(paths)
