"""The benchmark measures what it says: every reading of a fleet that is there."""

from __future__ import annotations

from benchmarks.bench_fleet_reads import measure


def test_every_reading_is_measured(empty_database: str) -> None:
    found = measure(empty_database, topics=20, rounds=1)

    assert found["topics"] == 20
    readings = found["reading"]
    assert isinstance(readings, dict)
    assert list(readings) == ["scrape, 0 series", "scrape, 1000 series", "fleet", "topic"]
    assert all(one["seconds"] > 0 for one in readings.values())
