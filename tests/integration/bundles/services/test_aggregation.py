"""One window of bundle load: what a run leaves that fails after the computation, and what it says of files that are no
reports. The computation itself is given.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from controller.bundles.broker_reports import REPORT_SCHEMAS, ReportArea
from controller.bundles.services import aggregation
from controller.bundles.services.aggregation import BundleAggregation, aggregate
from controller.bundles.store.loads import CHANGE_SCHEMAS
from controller.landing.file_names import day_directory
from controller.landing.location import Location
from spark_jobs.bundle_figures import ReportWindow
from tests.support.store_driver import StoreDriver

END_MS = 1_800_000_000_000


class FullArea(ReportArea):
    """An area whose storage refuses hot topics while it is full."""

    is_full = True

    def publish_hot_topics(self, window_end_ms: int, topics: pa.Table) -> None:
        if self.is_full:
            raise OSError("no space left")
        super().publish_hot_topics(window_end_ms, topics)


def test_a_run_that_could_not_store_the_hot_topics_is_made_up_for_by_its_repeat(
    driver: StoreDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {name: schema.empty_table() for name, schema in CHANGE_SCHEMAS.items()}
    changes |= {"hot_topics": pa.table({"topic": ["t"]}), "silent": pa.table({}), "uncut": pa.table({})}
    monkeypatch.setattr(aggregation, "_compute", lambda *_: changes)
    area = FullArea(str(tmp_path))
    broker = pa.Table.from_pylist(
        [{"cluster": "c", "broker": "b", "instant_ms": END_MS}], REPORT_SCHEMAS["brokers"]
    )
    landed = {kind: schema.empty_table() for kind, schema in REPORT_SCHEMAS.items()} | {"brokers": broker}
    area.append(END_MS, "c", landed)

    def run() -> BundleAggregation:
        return aggregate(driver.store, area, "local[1]", ReportWindow(END_MS), run_id="r" * 300)

    with pytest.raises(OSError, match="no space left"):
        run()
    area.is_full = False

    assert run().applied
    found = area.hot_topics(END_MS)
    assert found is not None
    assert found.column("topic").to_pylist() == ["t"]
    with capture_logs() as logged:
        assert not run().applied
    assert [(entry["log_level"], entry["last_window_end_ms"]) for entry in logged] == [("warning", END_MS)]


def test_a_file_that_could_not_be_moved_is_not_said_to_be_in_quarantine(
    driver: StoreDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    area = ReportArea(str(tmp_path))
    stray = f"brokers/{day_directory(END_MS)}/export.parquet"
    with area.location.writing(stray) as stream:
        stream.write(b"no report")

    def refuse(*_arguments: object) -> None:
        raise PermissionError("the directory is read-only")

    monkeypatch.setattr(Location, "move", refuse)

    with capture_logs() as logged:
        result = aggregate(driver.store, area, "local[1]", ReportWindow(END_MS), run_id="run")

    assert result.quarantined == (stray,)
    assert [(entry["event"], entry["path"]) for entry in logged] == [
        ("file set aside", stray),
        ("cannot move file to quarantine", stray),
    ]
