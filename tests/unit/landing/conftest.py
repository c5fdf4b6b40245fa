"""Landing areas on a local directory and on a file system that only fsspec knows."""

from __future__ import annotations

import secrets
from pathlib import Path

import pyarrow as pa
import pytest

from controller.landing.area import LandingArea
from controller.landing.schemas import SAMPLE_SCHEMA

NOON = 1_800_014_400_000  # 2027-01-15T12:00:00Z
HOUR = 3_600_000
DAY = "day=2027-01-15"


@pytest.fixture(params=["local", "fsspec"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the area is."""
    return (
        str(tmp_path / "landing") if request.param == "local" else f"memory://{secrets.token_hex(6)}/landing"
    )


@pytest.fixture
def area(url: str) -> LandingArea:
    """An empty area."""
    return LandingArea(url)


def samples(*counts: int, instant_ms: int = NOON) -> pa.Table:
    """One sample a count; counts tell the samples of a test apart."""
    rows = [(1, 0, "log", "broker", "c", instant_ms * 1000, count, 0, 0, 0) for count in counts]
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), SAMPLE_SCHEMA, strict=True)],
        schema=SAMPLE_SCHEMA,
    )


def counts(area: LandingArea, from_ms: int = NOON - 24 * HOUR, to_ms: int = NOON + 24 * HOUR) -> list[int]:
    """Every sample a reader finds now, as often as it finds it."""
    files = area.examine(area.files(from_ms, to_ms)[0]).files
    return sorted(row["msg_in"] for batch in area.batches(files, ["msg_in"]) for row in batch.to_pylist())
