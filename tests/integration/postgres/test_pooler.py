"""PgBouncer between Cleave and PostgreSQL: sessions are kept for a client, with their settings, or the pooler is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from controller.dataplane.postgres_calls import PostgresCalls
from controller.domain.errors import DataPlaneUnavailable, InvalidInput
from controller.domain.policy import PolicyOverride
from controller.postgres.listener import Listener
from controller.store.postgres.engine import Store, is_pooled, server_process
from controller.store.topics import consumers, policies
from tests.support.bench import Bench
from tests.support.cleave_process import cleave_process
from tests.support.pgbouncer import pgbouncer
from tests.support.store_driver import StoreDriver
from tests.support.waiting import wait_until

LONG = 60.0

LIMITS = (
    "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'),"
    "       current_setting('idle_in_transaction_session_timeout'), current_setting('plan_cache_mode')"
)
IGNORED = ["extra_float_digits", "extra_float_digits,options"]
"""Startup parameters that PgBouncer is told to ignore: without `options` among them, it refuses these."""


@pytest.mark.parametrize("ignored", IGNORED)
def test_the_limits_of_a_session_are_in_force(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: str
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c statement_timeout=1h")
    with pgbouncer(database, tmp_path, "session", ignore_startup_parameters=ignored) as url:
        driver = StoreDriver(url)
        calls = PostgresCalls(url, call_timeout_seconds=10.0)
        with calls.statement("look") as cursor:
            cursor.execute(LIMITS)
            of_calls = cursor.fetchone()

        assert driver.sql(LIMITS) == [("30s", "48s", "2min", "force_generic_plan")]
        assert of_calls == ("6s", "8s", "10s", "auto")
        driver.store.dispose()
        calls.close()


@pytest.mark.parametrize("ignored", IGNORED)
def test_settings_of_the_url_are_in_force(database: str, tmp_path: Path, ignored: str) -> None:
    options = r"?options=-c%20work_mem%3D8MB%20--cleave.word%3Da%5C%20b%20-cenable-sort%3Doff"
    with pgbouncer(database, tmp_path, "session", ignore_startup_parameters=ignored) as url:
        driver = StoreDriver(url + options)

        settings = "SELECT current_setting('work_mem'), current_setting('cleave.word'), current_setting('enable_sort')"
        assert driver.sql(settings) == [("8MB", "a b", "off")]
        driver.store.dispose()


def test_an_option_of_the_url_that_is_no_setting_is_refused(database: str, tmp_path: Path) -> None:
    with pgbouncer(database, tmp_path, "session") as url:
        store = Store(f"{url}?options=-d%202")
        with pytest.raises(InvalidInput, match="write each as -c name=value"), store.transaction():
            pass


def test_notifications_arrive_and_name_the_process_that_sent_them(database: str, tmp_path: Path) -> None:
    with pgbouncer(database, tmp_path, "session") as url, Listener(url, ["news"]) as listener:
        assert [one.is_resync for one in listener.wait(LONG)] == [True]
        driver = StoreDriver(url)
        with driver.store.transaction() as tx:
            sender = server_process(tx)
            tx.execute(text("SELECT pg_notify('news', '17')"))

        [heard] = listener.wait(LONG)
        assert (heard.ids, heard.sender) == ((17,), sender)
        driver.store.dispose()


def test_a_pool_with_one_session_serves_one_connection(database: str, tmp_path: Path) -> None:
    """No second one can show whether sessions are shared, and the first is not refused for it."""
    with pgbouncer(database, tmp_path, "session", default_pool_size=1) as url:
        store = Store(url, pool_size=1, statement_seconds=2.0)
        with store.transaction() as tx:
            assert is_pooled(tx)
        store.dispose()


def test_a_server_without_a_pooler_is_known_as_such(database: str) -> None:
    store = Store(database)
    with store.transaction() as tx:
        assert not is_pooled(tx)
    store.dispose()


@pytest.mark.parametrize("ignored", IGNORED)
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pooler_that_shares_sessions_is_refused_by_the_first_connection(
    database: str, tmp_path: Path, mode: str, ignored: str
) -> None:
    with pgbouncer(database, tmp_path, mode, ignore_startup_parameters=ignored) as url:
        store, calls = Store(url), PostgresCalls(url, call_timeout_seconds=10.0)

        with pytest.raises(InvalidInput, match="pool_mode = session"), store.transaction():
            pass
        with pytest.raises(DataPlaneUnavailable, match="pool_mode = session"), calls.statement("look"):
            pass
        store.dispose()
        calls.close()


@pytest.mark.parametrize("round_robin", [0, 1])
def test_sessions_that_are_shared_while_others_work_are_found_out(
    database: str, tmp_path: Path, round_robin: int
) -> None:
    with (
        pgbouncer(database, tmp_path, "transaction", server_round_robin=round_robin) as url,
        ThreadPoolExecutor(4) as threads,
    ):
        attempts = [threads.submit(StoreDriver(url).sql, "SELECT 1") for _ in range(20)]

    assert {type(one.exception(LONG)) for one in attempts} == {InvalidInput}


def test_a_worker_and_doctor_say_in_one_sentence_what_is_wrong(database: str, tmp_path: Path) -> None:
    sentence = "transaction pooling); set pool_mode = session for Cleave's database in the pooler"
    with pgbouncer(database, tmp_path, "transaction") as url:
        said = {}
        for command in ("worker", "doctor"):
            process = cleave_process(command, log=tmp_path / command, database_url=url)
            process.start()
            wait_until(lambda ended=process: not ended.running, timeout_seconds=LONG, message=command)
            said[command] = (process.exit_code, (tmp_path / command).read_text())
            process.stop()

    worker, doctor = said["worker"], said["doctor"]
    assert (worker[0], doctor[0]) == (2, 1)
    assert [" ".join(said.split()).count(sentence) for said in (worker[1], doctor[1])] == [1, 1]
    assert "Traceback" not in worker[1] + doctor[1]


def test_a_worker_hears_of_consumers_and_splits_for_them(database: str, tmp_path: Path) -> None:
    with (
        pgbouncer(database, tmp_path, "session", default_pool_size=40) as url,
        closing(Bench(database)) as bench,
    ):
        bench.topic_with()
        with bench.store.transaction() as tx:  # a consumer without a segment has one split
            policies.set_topic(tx, bench.topic_id, PolicyOverride(split_vs_rebucket_min_msg_rate_in=0))
        worker = cleave_process(
            "worker", log=tmp_path / "worker", database_url=url, embedded_url=url, worker_sweep_seconds=3600
        )
        worker.start()
        try:
            with bench.store.transaction() as tx:
                for name in ("a", "b"):
                    consumers.register(tx, bench.topic_id, "billing", name)
            wait_until(
                lambda: len(bench.layout.active) == 2, timeout_seconds=LONG, message="the worker splits"
            )
        finally:
            worker.stop()

    assert "Traceback" not in (tmp_path / "worker").read_text()
