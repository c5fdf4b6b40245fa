"""Upkeep of landed samples: small files become few, old days go, and no sample of a kept day is lost."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from sqlalchemy import text

from controller.clock import to_ms
from controller.landing.area import LandingArea
from controller.landing.history import RateHistory
from controller.landing.schemas import KEY_COUNT_SCHEMA, RATE_SCHEMA, SAMPLE_SCHEMA
from controller.store.postgres.engine import Store
from controller.tasks import keep_landing

TODAY = datetime.now(UTC)


def land(area: LandingArea, at: datetime, msg_in: int) -> None:
    """One tick of one segment."""
    row = {"topic_id": 1, "segment_id": 0, "backing_topic": "s", "source": "b", "reader": "c", "instant": at}
    counters = {"msg_in": msg_in, "byte_in": 0, "msg_out": 0, "byte_out": 0}
    area.append(to_ms(at), "collector", pa.Table.from_pylist([row | counters], SAMPLE_SCHEMA))


def counters_of(area: LandingArea, day: datetime) -> list[int]:
    files, rejected = area.files(to_ms(day - timedelta(days=1)), to_ms(day + timedelta(days=1)))
    assert rejected == []
    return sorted(n for batch in area.batches(files, ["msg_in"]) for n in batch.column(0).to_pylist())


def extras(path: Path, **settings: object) -> dict[str, object]:
    return {"landing_url": str(path / "landing"), "history_url": str(path / "history"), **settings}


def test_past_hours_are_compacted_and_no_sample_is_lost(database: str, tmp_path: Path) -> None:
    area = LandingArea(str(tmp_path / "landing"))
    yesterday = (TODAY - timedelta(days=1)).replace(hour=3, minute=0, second=0, microsecond=0)
    for tick in range(20):
        land(area, yesterday + timedelta(seconds=10 * tick), tick)

    done = keep_landing(dsn=database, extras=extras(tmp_path))

    files, _ = area.files(to_ms(yesterday), to_ms(yesterday + timedelta(hours=1)))
    assert done["compacted"] == 20
    assert [file.is_compacted for file in files] == [True]
    assert counters_of(area, yesterday) == list(range(20))


def test_days_past_their_keeping_are_deleted_and_younger_ones_stay(database: str, tmp_path: Path) -> None:
    area = LandingArea(str(tmp_path / "landing"))
    old, young = TODAY - timedelta(days=9), TODAY - timedelta(days=2)
    land(area, old, 1)
    land(area, young, 2)
    counts = LandingArea(str(tmp_path / "landing-key-counts"), KEY_COUNT_SCHEMA)
    for day in (old, young):
        counts.append(to_ms(day), "worker", KEY_COUNT_SCHEMA.empty_table())

    done = keep_landing(dsn=database, extras=extras(tmp_path, landing_keep_days=7))

    assert done["expired"] == [f"day={old:%Y-%m-%d}"] * 2
    assert counts.location.directories() == [f"day={young:%Y-%m-%d}"]
    assert counters_of(area, young) == [2]


def test_what_killed_runs_left_is_published_if_merged_and_swept_if_old(database: str, tmp_path: Path) -> None:
    history, end = RateHistory(str(tmp_path / "history")), TODAY.replace(microsecond=0)
    for name in ("merged", "young", "old"):
        scratch = history.scratch(name)
        scratch.write("rates", RATE_SCHEMA.empty_table())
        scratch.finish(name, to_ms(end))
    for path in (tmp_path / "history" / "_runs" / "old").rglob("*"):
        os.utime(path, (1, 1))
    os.utime(tmp_path / "history" / "_runs" / "old", (1, 1))
    store = Store(database)
    with store.transaction() as tx:
        tx.execute(
            text(
                "INSERT INTO cleave.load_run (run_id, window_end, engine, samples, segments, written, outrun)"
                " VALUES ('merged', :window_end, 'sql', 0, 0, 0, 0)"
            ),
            {"window_end": end},
        )
    store.dispose()

    done = keep_landing(dsn=database, extras=extras(tmp_path))

    assert (done["published"], done["swept"]) == (["merged"], ["_runs/old"])
    assert [path.name for path in (tmp_path / "history" / "_runs").iterdir()] == ["young"]
    assert len(list((tmp_path / "history").glob("day=*/window_end=*/*.parquet"))) == 1


def test_a_dry_run_names_the_days_and_touches_nothing(database: str, tmp_path: Path) -> None:
    area = LandingArea(str(tmp_path / "landing"))
    old = TODAY - timedelta(days=9)
    land(area, old, 1)

    done = keep_landing(dsn=database, extras=extras(tmp_path, landing_keep_days=7), dry_run=True)

    assert done["would_delete_before"]["landing"] == f"{TODAY - timedelta(days=7):%Y-%m-%d}"
    assert counters_of(area, old) == [1]
