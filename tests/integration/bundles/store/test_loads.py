"""Bundle load: a run is merged once, completely, and only over the records and boundaries it was computed from."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from controller.bundles.store import loads as bundle_loads
from controller.bundles.store import namespaces as bundle_namespaces
from controller.domain.errors import InvalidInput
from controller.store.load.records import MergeResult
from tests.support import bundle_reports as rows
from tests.support.bundle_reports import CLUSTER, HALF, LAST, NAMESPACE, NOW
from tests.support.store_driver import StoreDriver

FIRST = {
    "boundaries": [rows.boundaries(HALF)],
    "bundles": [rows.bundle(0, HALF, 1 / 3), rows.bundle(HALF, LAST, 1e15, broker=None)],
    "namespaces": [rows.namespace_figures(1.5)],
    "brokers": [rows.broker(), rows.broker("broker-2", 0.1)],
    "clusters": [rows.cluster_figures(usage_stddev=0.25)],
}


def merge(driver: StoreDriver, run: str, minutes: int = 0, **changes: list[dict[str, Any]]) -> MergeResult:
    return driver.do(rows.merge, run, changes, minutes=minutes)


def stored(driver: StoreDriver) -> list[tuple[Any, ...]]:
    return driver.sql(
        "SELECT lower_bound, upper_bound, msg_rate_in, row_version FROM cleave.bundle_load ORDER BY 1"
    )


def test_what_is_merged_is_the_next_baseline_to_the_bit(driver: StoreDriver) -> None:
    assert merge(driver, "run-1", **FIRST) == MergeResult(6, 0, applied=True)

    baseline = driver.do(bundle_loads.baseline)
    assert {name: table.schema for name, table in baseline.items()} == bundle_loads.BASELINE_SCHEMAS
    expected = {
        "stored_boundaries": FIRST["boundaries"],
        "stored_bundles": FIRST["bundles"],
        "stored_namespaces": FIRST["namespaces"],
        "stored_brokers": FIRST["brokers"],
    }
    bookkeeping = {"seen_row_version", "seen_namespace_version", "gone"}
    for name, given in expected.items():
        plain = [{k: v for k, v in row.items() if k not in bookkeeping} | {"row_version": 1} for row in given]
        assert sorted(baseline[name].to_pylist(), key=str) == sorted(plain, key=str)
    assert driver.do(bundle_loads.watermark) == NOW
    assert driver.sql("SELECT topics, written, quarantined FROM cleave.bundle_load_run") == [
        (7, 6, ["bad.parquet"])
    ]
    assert driver.sql("SELECT usage_stddev, run_id FROM cleave.cluster_load") == [(0.25, "run-1")]


def test_an_empty_database_gives_empty_tables_of_the_right_types(driver: StoreDriver) -> None:
    baseline = driver.do(bundle_loads.baseline)

    assert {name: (t.schema, t.num_rows) for name, t in baseline.items()} == {
        name: (schema, 0) for name, schema in bundle_loads.BASELINE_SCHEMAS.items()
    }
    assert driver.do(bundle_loads.watermark) is None


@pytest.mark.parametrize(("run", "minutes"), [("run-1", 5), ("run-2", 0), ("run-3", -1)])
def test_a_run_is_merged_once_and_none_at_or_behind_the_watermark(
    driver: StoreDriver, run: str, minutes: int
) -> None:
    merge(driver, "run-1", **FIRST)
    later = rows.bundle(0, HALF, 9.0, seen_row_version=1, seen_namespace_version=1)

    assert merge(driver, run, minutes, bundles=[later]) == MergeResult(0, 0, applied=False)
    assert stored(driver)[0][2:] == (1 / 3, 1)
    assert driver.sql("SELECT count(*) FROM staging.bundle_row") == [(0,)]


def test_runs_go_on_after_the_databases_clock_went_back(driver: StoreDriver) -> None:
    """By ten minutes, after the run of the last window."""
    broker = rows.broker(observed_at_ms=rows.NOW_MS + 600_000)
    merge(driver, "from the future", 10, **FIRST | {"brokers": [broker]})
    driver.sql(
        "UPDATE cleave.bundle_load_run SET applied_at = applied_at + interval '10 minutes' RETURNING 1"
    )
    assert driver.do(bundle_loads.watermark) is None
    later = rows.bundle(0, HALF, 9.0, seen_row_version=1, seen_namespace_version=1)

    assert merge(driver, "run-2", 1, bundles=[later]).applied

    assert stored(driver)[0][2:] == (9.0, 2)
    at = NOW + timedelta(minutes=1)
    assert driver.sql("SELECT run_id, window_end FROM cleave.bundle_load_run") == [("run-2", at)]
    assert driver.sql("SELECT observed_at, row_version FROM cleave.broker_load") == [(at, 2)]


def test_a_record_that_moved_meanwhile_is_left_for_the_next_run(driver: StoreDriver) -> None:
    merge(driver, "run-1", **FIRST)
    fresh = rows.bundle(0, HALF, 5.0, seen_row_version=1, seen_namespace_version=1)
    stale = rows.bundle(HALF, LAST, 6.0, seen_row_version=9, seen_namespace_version=1)

    merged = merge(
        driver,
        "run-2",
        1,
        bundles=[fresh, stale],
        brokers=[rows.broker(cpu=60.0, seen_row_version=1), rows.broker("broker-2", 70.0)],
    )

    assert merged == MergeResult(2, 2, applied=True)
    assert stored(driver) == [(0, HALF, 5.0, 2), (HALF, LAST, 1e15, 1)]
    assert driver.sql("SELECT cpu_usage, row_version FROM cleave.broker_load ORDER BY broker") == [
        (60.0, 2),
        (0.1, 1),
    ]


def test_load_computed_from_boundaries_that_changed_since_waits(driver: StoreDriver) -> None:
    merge(driver, "run-1", **FIRST)
    driver.do(
        bundle_namespaces.set_boundaries,
        CLUSTER,
        NAMESPACE,
        [0, HALF // 2, HALF, LAST],
        actor="ann",
        seen_row_version=1,
    )
    old = rows.bundle(0, HALF, 5.0, seen_row_version=1, seen_namespace_version=1)

    assert merge(driver, "run-2", 1, bundles=[old]) == MergeResult(0, 1, applied=True)
    assert stored(driver)[0] == (0, HALF, 1 / 3, 1)


def test_boundaries_that_lost_their_race_take_their_load_with_them(driver: StoreDriver) -> None:
    merge(driver, "run-1", **FIRST)

    merged = merge(
        driver,
        "run-2",
        1,
        boundaries=[rows.boundaries(HALF // 2, HALF, seen=7)],
        bundles=[rows.bundle(HALF // 2, HALF, 5.0)],
    )

    assert merged == MergeResult(0, 2, applied=True)
    assert len(stored(driver)) == 2


def test_a_split_replaces_the_parent_and_adds_the_children(driver: StoreDriver) -> None:
    merge(driver, "run-1", **FIRST)
    quarter = HALF // 2

    merged = merge(
        driver,
        "run-2",
        1,
        boundaries=[rows.boundaries(quarter, HALF, seen=1)],
        bundles=[
            rows.bundle(0, quarter, 2.0, seen_row_version=1),
            rows.bundle(quarter, HALF, 3.0),
        ],
    )

    assert merged == MergeResult(3, 0, applied=True)
    assert stored(driver) == [(0, quarter, 2.0, 2), (quarter, HALF, 3.0, 1), (HALF, LAST, 1e15, 1)]
    assert driver.do(bundle_namespaces.get_namespace, CLUSTER, NAMESPACE).row_version == 2


def test_what_is_gone_is_removed(driver: StoreDriver) -> None:
    merge(driver, "run-1", **FIRST)
    gone = rows.bundle(HALF, LAST, seen_row_version=1, gone=True)

    merged = merge(
        driver,
        "run-2",
        1,
        boundaries=[rows.boundaries(seen=1)],
        bundles=[rows.bundle(0, LAST, 4.0, seen_row_version=1), gone],
        brokers=[rows.broker("broker-2", seen_row_version=1, gone=True)],
    )

    assert merged == MergeResult(4, 0, applied=True)
    assert stored(driver) == [(0, LAST, 4.0, 2)]
    assert driver.sql("SELECT broker FROM cleave.broker_load") == [("broker-1",)]


def test_only_bundles_of_the_present_boundaries_are_read(driver: StoreDriver) -> None:
    merge(driver, "run-1", **FIRST)
    driver.do(
        bundle_namespaces.set_boundaries,
        CLUSTER,
        NAMESPACE,
        [0, HALF // 2, HALF, LAST],
        actor="ann",
        seen_row_version=1,
    )

    found = driver.do(bundle_loads.bundles_of, CLUSTER)

    assert [(row["lower_bound"], row["upper_bound"]) for row in found] == [(HALF, LAST)]
    assert [row["broker"] for row in driver.do(bundle_loads.brokers_of, CLUSTER)] == ["broker-1", "broker-2"]
    assert driver.do(bundle_loads.brokers_of, "elsewhere") == []


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"boundaries": [rows.boundaries(5, 5)]}, "rise from 0 to 4294967295"),
        ({"boundaries": [rows.boundaries(9, 5)]}, "rise from 0 to 4294967295"),
        ({"boundaries": [rows.boundaries(namespace="plain")]}, "tenant/namespace"),
        ({"bundles": [rows.bundle(0, LAST, float("inf"))]}, "finite"),
        ({"bundles": [rows.bundle(0, LAST, -1.0)]}, "not negative"),
        ({"bundles": [rows.bundle(9, 9)]}, "not empty"),
        ({"bundles": [rows.bundle(0, LAST, topic_count=-1)]}, "Counts"),
        ({"brokers": [rows.broker(report="gossip")]}, "load-report"),
    ],
)
def test_what_can_never_be_right_is_refused_whole(
    driver: StoreDriver, bad: dict[str, list[dict[str, Any]]], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        merge(driver, "run-1", **({"boundaries": [rows.boundaries()]} | bad))

    assert driver.sql("SELECT count(*) FROM cleave.bundle_load_run") == [(0,)]


def test_the_loader_does_its_whole_work_with_its_own_rights(driver: StoreDriver) -> None:
    with driver.store.transaction() as tx:
        tx.execute(text("SET LOCAL ROLE cleave_spark_loader"))
        bundle_loads.watermark(tx)
        bundle_loads.baseline(tx)
        assert rows.merge(tx, "run-1", FIRST).written == 6
