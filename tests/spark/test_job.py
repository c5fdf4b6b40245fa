"""The job where it really runs: on a warm Connect server, by spark-submit on a cluster of two workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from controller.bundles.services.aggregation import LIMIT_SCHEMA
from controller.bundles.store.loads import BASELINE_SCHEMAS
from controller.devstack.ports import LOOPBACK, free_port, release_port
from controller.devstack.spark_connect import SparkConnectServer
from controller.domain.counter_rates import CounterSample
from controller.domain.errors import InvalidInput, Retryable
from controller.domain.load_record import LoadStats, LoadThresholds
from controller.landing.schemas import KEY_COUNT_SCHEMA
from controller.spark_requirements import NO_SPARK
from controller.store.load.records import SKETCH_SCHEMA
from spark_jobs.run_bundle_load import main as bundle_main
from spark_jobs.run_load_aggregation import compute, main
from spark_jobs.session import get_session, with_session
from tests.spark.oracle import Case, StoredRecord, tables
from tests.spark.random_cases import WINDOW, batch, check
from tests.support.spark_cluster import Cluster
from tests.support.spark_session import LIGHTLY


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkConnectServer]:
    """A Connect server of this module's own."""
    conf = {"spark.driver.extraJavaOptions": LIGHTLY}
    with SparkConnectServer(tmp_path_factory.mktemp("connect"), driver_memory="1g", conf=conf) as server:
        yield server
        get_session(server.url).stop()  # a client left over asks a dead server for half a minute at exit


def hand_over(cases: list[Case], scratch: Path) -> str:
    """Write the samples into a run's scratch directory. Return their URL."""
    (scratch / "samples").mkdir(parents=True)
    path = scratch / "samples" / "part-0.parquet"
    pq.write_table(tables(cases)["samples"], path)
    return path.as_uri()


def run_on(master: str, cases: list[Case], scratch: Path) -> None:
    """One run on the session for the master, checked against the domain."""
    samples = hand_over(cases, scratch)
    heard = with_session(master, lambda spark: compute(spark, [samples], scratch.as_uri(), WINDOW))
    check(cases, pq.read_table(scratch / "rates"), heard)


def test_every_run_on_a_connect_server_shares_one_session(
    connect: SparkConnectServer, tmp_path: Path
) -> None:
    run_on(connect.url, batch(1), tmp_path / "1")
    first = get_session(connect.url)

    run_on(connect.url, batch(2), tmp_path / "2")

    assert get_session(connect.url) is first


def test_samples_that_all_lie_outside_the_window_are_a_run_without_rates(
    connect: SparkConnectServer, tmp_path: Path
) -> None:
    """Connect cannot infer the schema of an empty table."""
    early = CounterSample("a", WINDOW.read_from_ms - 1, 1, 1, 1, 1)
    none = LoadThresholds(LoadStats(), LoadStats())
    cases = [Case((early,), none, stored=StoredRecord(LoadStats(), "a", WINDOW.start_ms))]
    run_on(connect.url, cases, tmp_path / "here")

    samples, counts = hand_over(cases, tmp_path / "there"), tmp_path / "counts.parquet"
    pq.write_table(KEY_COUNT_SCHEMA.empty_table(), counts)
    options = ["--key-counts", counts.as_uri(), "--counted-since-ms", COUNTED_SINCE, "--master", connect.url]
    main([*parts(samples, tmp_path / "there"), *options])
    assert pq.read_table(tmp_path / "there" / "heard").num_rows == 0
    assert sketches(tmp_path / "there").num_rows == 0


def test_a_run_of_bundle_load_without_reports_ends_on_a_connect_server(
    connect: SparkConnectServer, tmp_path: Path
) -> None:
    for name, schema in {**BASELINE_SCHEMAS, "limits": LIMIT_SCHEMA}.items():
        (tmp_path / name).mkdir()
        pq.write_table(schema.empty_table(), tmp_path / name / "part-0.parquet")
    bundle_main(
        ["--master", connect.url, "--scratch", tmp_path.as_uri(), "--window-end-ms", str(WINDOW.end_ms)]
    )
    assert pq.read_table(tmp_path / "brokers").num_rows == 0


def test_a_session_that_somebody_ended_is_replaced_within_the_run(
    connect: SparkConnectServer, tmp_path: Path
) -> None:
    run_on(connect.url, batch(1), tmp_path / "1")
    ended = get_session(connect.url)
    ended.client.release_session()  # Connect's own; the server ends it, we do not know

    run_on(connect.url, batch(2), tmp_path / "2")

    assert get_session(connect.url).session_id != ended.session_id  # type: ignore[attr-defined]


def test_settings_are_in_force_for_those_who_give_them_and_only_as_long(connect: SparkConnectServer) -> None:
    """A setting that was removed stayed in force on the server, for every process."""
    setting = "spark.sql.shuffle.partitions"
    plain = get_session(connect.url)
    default = plain.conf.get(setting)
    changed = get_session(connect.url, {setting: "2000", "spark.sql.files.ignoreCorruptFiles": "true"})
    try:
        assert (plain.conf.get(setting), changed.conf.get(setting)) == (default, "2000")
        assert plain.session_id != changed.session_id  # type: ignore[attr-defined]
        assert get_session(connect.url) is plain
        in_another_order = {"spark.sql.files.ignoreCorruptFiles": "true", setting: "2000"}
        assert get_session(connect.url, in_another_order) is changed
    finally:
        changed.stop()


@pytest.mark.filterwarnings("ignore:.*RETRIES_EXCEEDED")
def test_a_connect_server_that_is_away_can_be_tried_again() -> None:
    port = free_port()
    with pytest.raises(Retryable, match=rf"localhost:{port} does not answer"):
        get_session(f"sc://localhost:{port}/;token=secret")
    release_port(port)


def test_a_master_that_is_none_is_named() -> None:
    with pytest.raises(InvalidInput, match="SPARK_MASTER 'sparky'"):
        get_session("sparky")


def test_no_spark_is_said_to_be_too_little_for_what_needs_spark() -> None:
    with pytest.raises(InvalidInput, match=r"SPARK_MASTER is none, .* bundles") as raised:
        get_session(NO_SPARK)
    assert "is not a master" not in str(raised.value)


def test_yarn_without_its_configuration_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(InvalidInput, match="set HADOOP_CONF_DIR or YARN_CONF_DIR"):
        get_session("yarn")


def test_masters_of_a_cluster_that_are_away_can_be_tried_again_and_cost_no_java() -> None:
    ports = [free_port(), free_port()]
    with pytest.raises(Retryable, match=rf"no Spark master answers at spark://\S+{ports[1]};"):
        get_session(f"spark://{LOOPBACK}:{ports[0]},{LOOPBACK}:{ports[1]}")
    for port in ports:
        release_port(port)


@pytest.mark.parametrize(
    ("setting", "value"), [("spark.cores.max", "2"), ("spark.sql.shuffle.partitions", "many")]
)
def test_a_setting_that_a_session_on_a_connect_server_may_not_have_is_named(
    connect: SparkConnectServer, setting: str, value: str
) -> None:
    other = f"{connect.url};user_id=somebody"
    with pytest.raises(InvalidInput, match=rf"refuses a setting: .*{setting}"):
        get_session(other, {setting: value})


def parts(samples: str, scratch: Path) -> list[str]:
    """A run's parts as options."""
    return ["--samples", samples, "--scratch", scratch.as_uri(), "--window-end-ms", str(WINDOW.end_ms)]


COUNTED_SINCE = str(WINDOW.end_ms - 60_000)


def count_keys(scratch: Path) -> tuple[str, pa.Table]:
    """The URL of a file with some counts of this window, some of the one before; and what is to be made of them."""
    seconds_before = (1, 30, 59, 61)
    rows = {
        "topic_id": [1, 1, 2, 1],
        "segment_id": [0, 0, 5, 0],
        "source": ["a", "b", "a", "a"],
        "instant": [(WINDOW.end_ms - 1000 * seconds) * 1000 for seconds in seconds_before],
        "producers": [2, 1, 4, 9],
        "bins": [[1, 2], [10, 20], [7, 0], [500, 500]],
    }
    table = pa.table({name: rows[name] for name in KEY_COUNT_SCHEMA.names}).cast(KEY_COUNT_SCHEMA)
    pq.write_table(table, scratch / "counts.parquet")
    made = {
        "topic_id": [1, 2],
        "segment_id": [0, 5],
        "producers": [3, 4],
        "messages": [33, 7],
        "bins": [[11, 22], [7, 0]],
        "set_aside": [0, 0],
    }
    expected = pa.table({name: made[name] for name in SKETCH_SCHEMA.names}).cast(SKETCH_SCHEMA)
    return (scratch / "counts.parquet").as_uri(), expected


def sketches(scratch: Path) -> pa.Table:
    found = pq.read_table(scratch / "sketches").select(SKETCH_SCHEMA.names).cast(SKETCH_SCHEMA)
    return found.sort_by("topic_id")


@pytest.mark.usefixtures("spark")
def test_the_job_takes_its_parts_as_options(tmp_path: Path) -> None:
    """As spark-submit calls it, on a session that is there."""
    cases, scratch = batch(4), tmp_path / "scratch"
    samples = hand_over(cases, scratch)
    counts, expected = count_keys(tmp_path)

    main([*parts(samples, scratch), "--key-counts", counts, "--counted-since-ms", COUNTED_SINCE])

    check(cases, *(pq.read_table(scratch / name) for name in ("rates", "heard")))
    assert sketches(scratch).equals(expected)


def test_counts_of_no_known_time_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main([*parts("file:///s", tmp_path), "--key-counts", "file:///c"])
    assert "--key-counts needs --counted-since-ms" in capsys.readouterr().err


@pytest.mark.chaos  # minutes for a cluster's start
def test_spark_submit_runs_the_same_job_on_two_workers(tmp_path: Path) -> None:
    cases = batch(3)
    scratch = tmp_path / "scratch"
    samples = hand_over(cases, scratch)
    counts, expected = count_keys(tmp_path)
    with ExitStack() as running:
        cluster = Cluster(tmp_path, running)
        cluster.submit(*parts(samples, scratch), "--key-counts", counts, "--counted-since-ms", COUNTED_SINCE)

        assert cluster.workers_that_ran_it() == 2
    check(cases, *(pq.read_table(scratch / name) for name in ("rates", "heard")))
    assert sketches(scratch).equals(expected)
