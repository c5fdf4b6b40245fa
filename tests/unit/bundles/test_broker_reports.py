"""Which brokers the last ticks on file heard, and what is read of files that the storage does not give."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs
from structlog.testing import capture_logs

from controller.bundles.broker_reports import REPORT_SCHEMAS, ReportArea
from controller.landing import location

NOW_MS = 1_800_000_000_000


def land(area: ReportArea, at_ms: int, collector: str, *brokers: str, cluster: str = "c") -> None:
    tables = {kind: schema.empty_table() for kind, schema in REPORT_SCHEMAS.items()}
    told = [{"cluster": cluster, "broker": name} for name in brokers]
    tables["brokers"] = pa.Table.from_pylist(told, REPORT_SCHEMAS["brokers"])
    area.append(at_ms, collector, tables)


def heard(area: ReportArea) -> frozenset[str] | None:
    return area.heard("c", NOW_MS - 60_000, NOW_MS, ticks=2)


def test_files_of_one_instant_are_one_tick(tmp_path: Path) -> None:
    area = ReportArea(str(tmp_path))
    land(area, NOW_MS, "one", "a")
    land(area, NOW_MS, "two", "b")
    assert heard(area) is None

    land(area, NOW_MS - 30_000, "one", "d")
    land(area, NOW_MS - 40_000, "one", "long-silent")
    assert heard(area) == {"a", "b", "d"}


def test_a_tick_of_another_cluster_does_not_count(tmp_path: Path) -> None:
    area = ReportArea(str(tmp_path))
    land(area, NOW_MS, "one", "a")
    land(area, NOW_MS - 10_000, "two", "x", cluster="other")
    assert heard(area) is None

    land(area, NOW_MS - 20_000, "one", "b")
    assert heard(area) == {"a", "b"}


def test_files_that_cannot_be_read_are_named_and_stop_nothing(tmp_path: Path) -> None:
    area = ReportArea(str(tmp_path))
    for collector, broker in (("one", "a"), ("three", "lost"), ("two", "lost")):
        land(area, NOW_MS, collector, broker)
    land(area, NOW_MS - 20_000, "one", "b")
    _, no_parquet, damaged = sorted(tmp_path.glob("brokers/*/*"))[-3:]
    no_parquet.write_bytes(b"no Parquet")
    content = damaged.read_bytes()
    damaged.write_bytes(content[:4] + bytes(40) + content[44:])  # the first page; the footer is whole

    with capture_logs() as logged:
        assert heard(area) == {"a", "b"}

    assert sorted(entry["path"] for entry in logged) == [
        file.relative_to(tmp_path).as_posix() for file in (no_parquet, damaged)
    ]


@pytest.mark.parametrize("kind", REPORT_SCHEMAS)
@pytest.mark.skipif(sys.platform != "linux", reason="Linux has files that even root may not read")
def test_a_file_that_the_storage_does_not_give_is_no_report_that_is_missing(
    tmp_path: Path, kind: str
) -> None:
    area = ReportArea(str(tmp_path))
    land(area, NOW_MS, "one", "a")
    land(area, NOW_MS, "two", "b")
    [_, closed] = sorted(tmp_path.glob(f"{kind}/*/*"))
    closed.unlink()
    closed.symlink_to("/proc/self/mem")

    with pytest.raises(OSError, match=f"{closed.relative_to(tmp_path).as_posix()}: .*Input/output error"):
        area.landed(NOW_MS, NOW_MS)

    assert closed.is_symlink(), "it stays where it is"


def test_the_storage_is_found_once_for_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[str]()
    resolve = location._resolve

    def noted(url: str) -> tuple[fs.FileSystem, str]:
        found.append(url)
        return resolve(url)

    monkeypatch.setattr(location, "_resolve", noted)
    area = ReportArea(str(tmp_path))

    land(area, NOW_MS, "one", "a")
    area.publish_hot_topics(NOW_MS, pa.table({"topic": ["t"]}))
    area.landed(NOW_MS, NOW_MS)

    assert found == [area.location.url()]
