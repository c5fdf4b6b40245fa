"""Load records: the loader's baseline, and a result that gets in once, whole, and only over what it was made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from sqlalchemy import Connection, text

from controller.domain.errors import InvalidInput, Terminal
from controller.domain.policy import AutoScalePolicy, PolicyOverride
from controller.domain.recovery import RecoveryPlan, SegmentLog
from controller.store.journal import topic_intents
from controller.store.load import records as loads
from controller.store.load.records import CHANGE_SCHEMA, LoadRun
from controller.store.mirrors import commits as mirror_commits
from controller.store.postgres.arrow_copy import MergeResult, append
from controller.store.topics import policies, recovered_layout, topics
from controller.store.topics.recovered_layout import RecoveredLayout
from tests.support.reports import milliseconds, report_load
from tests.support.store_driver import SOMEBODY_WAITS, StoreDriver, request
from tests.support.waiting import wait_until

NOW = datetime(2026, 5, 17, 12, 0, 0, 123_000, tzinfo=UTC)
NO_CHANGES = CHANGE_SCHEMA.empty_table()
NO_SOURCES = loads.SOURCE_SCHEMA.empty_table()


def change(
    topic_id: int, segment_id: int = 0, rate: float = 1.5, seen: int = 0, **more: object
) -> dict[str, object]:
    """One row for the inbox."""
    return {
        "topic_id": topic_id,
        "segment_id": segment_id,
        "msg_rate_in": rate,
        "byte_rate_in": rate,
        "msg_rate_out": rate,
        "byte_rate_out": rate,
        "source": 'broker "1", the first',
        "modified_at_ms": milliseconds(NOW),
        "cold_since_ms": None,
        "silent_since_ms": None,
        "seen_row_version": seen,
    } | more


def merge(driver: StoreDriver, run: str, *rows: dict[str, object], minutes: int = 0) -> MergeResult:
    """One run whose window ends so many minutes after NOW."""
    return driver.do(
        loads.stage_and_merge,
        LoadRun(run, NOW + timedelta(minutes=minutes), "test", 10, len(rows), ["bad.parquet"]),
        pa.Table.from_pylist(list(rows), CHANGE_SCHEMA),
        pa.table(
            {"source": ['broker "1", the first'], "observed_at_ms": [milliseconds(NOW) + minutes * 60_000]}
        ),
    )


def as_loader(driver: StoreDriver, act: Callable[[Connection], object]) -> None:
    """Does it with the loader's rights and nobody else's."""
    with driver.store.transaction() as tx:
        tx.execute(text("SET LOCAL ROLE cleave_spark_loader"))
        act(tx)


def test_what_is_merged_is_the_next_baseline_to_the_bit(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2).topic_id
    first = change(topic_id, 0, 1 / 3, cold_since_ms=milliseconds(NOW) - 1)
    second = change(topic_id, 1, 1e15, silent_since_ms=milliseconds(NOW) - 7)

    assert merge(driver, "run-1", first, second) == MergeResult(2, 0, applied=True)

    baseline = driver.do(loads.baseline)
    stored = [{**row, "row_version": 1} for row in (first, second)]
    for row in stored:
        del row["seen_row_version"]
    assert sorted(baseline.records.to_pylist(), key=lambda row: row["segment_id"]) == stored
    assert baseline.sources.to_pylist() == [
        {"source": 'broker "1", the first', "observed_at_ms": milliseconds(NOW)}
    ]
    assert baseline.watermark == NOW
    assert driver.sql("SELECT samples, segments, written, quarantined FROM cleave.load_run") == [
        (10, 2, 2, ["bad.parquet"])
    ]


def test_an_empty_database_gives_empty_tables_of_the_right_types(driver: StoreDriver) -> None:
    baseline = driver.do(loads.baseline)

    assert baseline.watermark is None
    for table, schema in (
        (baseline.records, loads.RECORD_SCHEMA),
        (baseline.sources, loads.SOURCE_SCHEMA),
        (baseline.thresholds, loads.THRESHOLD_SCHEMA),
    ):
        assert table.schema == schema
        assert table.num_rows == 0


def test_thresholds_are_those_in_force_for_each_topic(driver: StoreDriver) -> None:
    plain, special = (driver.create(f"topic://t/{name}").topic_id for name in ("n/a", "m/a"))
    driver.do(policies.set_cluster, AutoScalePolicy(merge_msg_rate_in=10.0), actor="ann")
    driver.do(policies.set_namespace, "t/m", PolicyOverride(split_byte_rate_in=float("inf")), actor="ann")
    driver.do(policies.set_topic, special, PolicyOverride(load_change_threshold=0.5, strict_pulsar=True))

    rows = {row["topic_id"]: row for row in driver.do(loads.baseline).thresholds.to_pylist()}

    for topic_id in (plain, special):
        policy = driver.policy(topic_id)
        assert rows[topic_id] == {"topic_id": topic_id} | {
            name: getattr(policy, name) for name in loads.THRESHOLD_SCHEMA.names[1:]
        }
    assert (rows[plain]["strict_pulsar"], rows[special]["strict_pulsar"]) == (False, True)


@pytest.mark.parametrize(
    "value",
    [
        "1e400",
        "-1e400",
        '"fast"',
        "true",
        "[1]",
        '{"a": 1}',
        '"1e400"',
        pytest.param("9" * 5000, id="5,000 digits"),
    ],
)
def test_a_threshold_that_is_no_number_has_its_default_and_leaves_the_others_alone(
    driver: StoreDriver, value: str
) -> None:
    odd, plain = (driver.create(f"topic://t/n/{name}").topic_id for name in "ab")
    document = f'{{"split_msg_rate_in": {value}, "merge_msg_rate_in": 3, "load_stale_after_seconds": {value}, "strict_pulsar": "yes"}}'
    with driver.store.transaction() as tx:
        statement = "UPDATE cleave.topic SET policy = CAST(:document AS jsonb), row_version = row_version + 1 WHERE topic_id = :id"
        tx.execute(text(statement), {"document": document, "id": odd})
    default = AutoScalePolicy()

    rows = {row["topic_id"]: row for row in driver.do(loads.baseline).thresholds.to_pylist()}

    assert (rows[odd]["split_msg_rate_in"], rows[odd]["merge_msg_rate_in"]) == (10_000, 3)
    assert rows[plain]["merge_msg_rate_in"] == default.merge_msg_rate_in
    assert rows[odd]["strict_pulsar"] is False
    shown = "SELECT topic_id, split_msg_rate_in, load_stale_after_seconds FROM inspect.load_now"
    assert set(driver.sql(shown)) == {(odd, 10_000, 300), (plain, 10_000, 300)}


@pytest.mark.parametrize(("value", "read"), [("1e-400", 0.0), ('"Infinity"', float("inf")), ("0.5", 0.5)])
def test_a_threshold_is_the_number_that_the_domain_reads(
    driver: StoreDriver, value: str, read: float
) -> None:
    topic_id = driver.create().topic_id
    with driver.store.transaction() as tx:
        statement = "UPDATE cleave.topic SET policy = CAST(:document AS jsonb), row_version = row_version + 1 WHERE topic_id = :id"
        tx.execute(text(statement), {"document": f'{{"split_msg_rate_in": {value}}}', "id": topic_id})

    [row] = driver.do(loads.baseline).thresholds.to_pylist()

    assert row["split_msg_rate_in"] == read
    assert policies.read_policy("{}", None, f'{{"split_msg_rate_in": {value}}}').split_msg_rate_in == read


def test_a_run_is_merged_once_and_none_at_or_behind_the_watermark(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    merge(driver, "run-1", change(topic_id), minutes=1)

    repeats = [
        merge(driver, "run-1", change(topic_id, rate=9.0, seen=1), minutes=2),
        merge(driver, "run-2", change(topic_id, rate=9.0, seen=1), minutes=1),
        merge(driver, "run-3", change(topic_id, rate=9.0, seen=1), minutes=0),
    ]

    assert repeats == [MergeResult(0, 0, applied=False)] * 3
    assert driver.sql("SELECT msg_rate_in, row_version FROM cleave.segment_load") == [(1.5, 1)]
    assert driver.sql("SELECT FROM staging.load_row UNION ALL SELECT FROM staging.source_row") == []


def test_a_record_that_moved_since_it_was_read_is_left_and_counted(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2).topic_id
    merge(driver, "run-1", change(topic_id, 0), change(topic_id, 1))
    driver.sql("UPDATE cleave.segment_load SET row_version = 2, msg_rate_in = 7 WHERE segment_id = 0")

    result = merge(
        driver, "run-2", change(topic_id, 0, 9.0, seen=1), change(topic_id, 1, 9.0, seen=1), minutes=1
    )

    assert result == MergeResult(1, 1, applied=True)
    assert driver.sql("SELECT segment_id, msg_rate_in, row_version FROM cleave.segment_load ORDER BY 1") == [
        (0, 7, 2),
        (1, 9, 2),
    ]


def test_a_first_record_somebody_else_wrote_meanwhile_is_left_and_counted(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    merge(driver, "run-1", change(topic_id, rate=1.0))

    assert merge(driver, "run-2", change(topic_id, rate=9.0), minutes=1) == MergeResult(0, 1, applied=True)
    assert driver.sql("SELECT msg_rate_in, row_version FROM cleave.segment_load") == [(1, 1)]


def test_a_pruned_segment_gets_no_record(driver: StoreDriver) -> None:
    topic_id = driver.create(splits=[0]).topic_id
    driver.run(driver.do(topic_intents.intend_prune, topic_id, [0], request()).operation)

    assert merge(driver, "run-1", change(topic_id, 0)) == MergeResult(0, 1, applied=True)
    assert driver.sql("SELECT FROM cleave.segment_load") == []


def test_runs_merge_one_after_the_other(driver: StoreDriver) -> None:
    """The second one waits, and then sees that its window is behind."""
    topic_id = driver.create().topic_id
    with ThreadPoolExecutor(1) as pool:
        with driver.store.transaction() as tx:
            run = LoadRun("run-2", NOW + timedelta(minutes=2), "test", 0, 0)
            loads.stage_and_merge(tx, run, NO_CHANGES, NO_SOURCES)
            earlier = pool.submit(merge, driver, "run-1", change(topic_id), minutes=1)
            wait_until(lambda: earlier.done() or driver.sql(SOMEBODY_WAITS), message="the other run waits")
        assert earlier.result() == MergeResult(0, 0, applied=False)


def delete(driver: StoreDriver, topic_id: int) -> None:
    driver.delete(topic_id)


def prune(driver: StoreDriver, topic_id: int) -> None:
    driver.run(driver.do(topic_intents.intend_prune, topic_id, [0], request()).operation)


def recover(driver: StoreDriver, topic_id: int) -> None:
    """The logs show that segment 1 was split."""
    layout = driver.layout(topic_id).split(1, now=0)
    added = {i: SegmentLog(i, layout.segments[i].hash_range, f"log-{i}", False, False) for i in (4, 5)}
    recovered = RecoveredLayout(RecoveryPlan(layout, added, sealed=(1,)), {}, {}, 0)
    with driver.store.transaction() as tx:
        topic = topics.get_topic(tx, topic_id, lock=True)
        recovered_layout.commit(tx, topic, recovered, actor="ann", reason="test")


def leave(driver: StoreDriver, topic_id: int) -> None:
    """As the deletion of a topic does whose layout a broker keeps."""
    operation = driver.do(topic_intents.intend_delete, topic_id, request()).operation
    with driver.store.transaction() as tx:
        mirror_commits.apply(tx, topics.get_topic(tx, topic_id, lock=True), operation, {})


def remember(tx: Connection, run: LoadRun, topic_id: int, segment_ids: Sequence[int]) -> None:
    """The first half of a merge."""
    tick = dict.fromkeys(loads.TICK_SCHEMA.names, 1.0) | {"topic_id": topic_id}
    rows = [tick | {"segment_id": segment_id} for segment_id in segment_ids]
    append(
        tx, "staging.tick_row", run.run_id, pa.Table.from_pylist(rows, loads.TICK_SCHEMA), loads.TICK_SCHEMA
    )
    tx.execute(text("SELECT cleave.remember_loads(:run, :end)"), {"run": run.run_id, "end": run.window_end})


@pytest.mark.parametrize("end", [delete, prune, recover, leave])
def test_an_end_of_segments_waits_for_a_merge_of_their_load(
    driver: StoreDriver, end: Callable[[StoreDriver, int], None]
) -> None:
    """Both lock the memories, then the records, then the evaluation of the topic."""
    topic_id = driver.create(segments=2, splits=[0]).topic_id
    driver.do(remember, LoadRun("run-0", NOW, "test", 2, 2), topic_id, (0, 1))
    merge(driver, "run-1", change(topic_id, 0), change(topic_id, 1))
    run = LoadRun("run-2", NOW + timedelta(minutes=1), "test", 2, 2)
    changes = pa.Table.from_pylist([change(topic_id, i, seen=1) for i in (0, 1)], CHANGE_SCHEMA)

    with ThreadPoolExecutor(1) as pool:
        with driver.store.transaction() as tx:
            remember(tx, run, topic_id, (0, 1))
            ending = pool.submit(end, driver, topic_id)
            wait_until(lambda: ending.done() or driver.sql(SOMEBODY_WAITS), message="the end waits")
            loads.stage_and_merge(tx, run, changes, NO_SOURCES)
        ending.result()

    kept = "SELECT count(*) FROM cleave.load_memory JOIN cleave.segment_load USING (topic_id, segment_id)"
    assert driver.sql(kept) == [(1 if end in (prune, recover) else 0,)]


def test_a_source_never_becomes_older(driver: StoreDriver) -> None:
    merge(driver, "run-1", minutes=5)
    late = pa.table({"source": ['broker "1", the first'], "observed_at_ms": [milliseconds(NOW)]})
    run = LoadRun("run-2", NOW + timedelta(minutes=6), "test", 0, 0)
    driver.do(loads.stage_and_merge, run, NO_CHANGES, late)

    assert driver.sql("SELECT observed_at FROM cleave.load_source") == [(NOW + timedelta(minutes=5),)]


@pytest.mark.parametrize("rate", [-1.0, float("inf"), float("nan")])
def test_rates_that_are_no_rates_stop_the_whole_run(driver: StoreDriver, rate: float) -> None:
    topic_id = driver.create(segments=2).topic_id

    with pytest.raises(InvalidInput, match="Rates are finite and not negative"):
        merge(driver, "run-1", change(topic_id, 0), change(topic_id, 1, rate))

    assert driver.do(loads.watermark) is None
    assert driver.sql("SELECT FROM cleave.segment_load UNION ALL SELECT FROM staging.load_row") == []


def test_the_drivers_own_copy_errors_take_the_way_of_all_others(driver: StoreDriver) -> None:
    bad = pa.table({"source": ["nul\0byte"], "observed_at_ms": [1]})

    with pytest.raises(InvalidInput):
        driver.do(loads.stage_and_merge, LoadRun("run-1", NOW, "test", 0, 0), NO_CHANGES, bad)


def test_the_loader_does_its_work_with_its_own_rights(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id

    as_loader(driver, loads.baseline)
    as_loader(driver, lambda tx: report_load(tx, topic_id, {0: 10.0}))

    assert driver.do(loads.baseline).records.num_rows == 1


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM cleave.topic",
        "SELECT * FROM cleave.decision",
        "SELECT * FROM inspect.load_now",
        "UPDATE cleave.segment_load SET msg_rate_in = 0",
        "INSERT INTO cleave.load_source VALUES ('x', now())",
        "DELETE FROM cleave.segment_load",
        "SELECT * FROM staging.load_row",
        "DELETE FROM staging.load_row",
        "SELECT cleave.raise_input(ARRAY[1::bigint])",
        "SELECT cleave.drop_decision_partitions(now())",
    ],
)
def test_the_loader_may_do_nothing_else(driver: StoreDriver, statement: str) -> None:
    with pytest.raises(Terminal, match="permission denied"):
        as_loader(driver, lambda tx: tx.execute(text(statement)))
