"""Transactions: what is committed, what is rolled back, and what becomes of the driver's errors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from controller import metrics
from controller.devstack.ports import free_port
from controller.devstack.postgres import FORGETFUL, EmbeddedPostgres
from controller.domain.errors import (
    CleaveError,
    Conflict,
    HeldUp,
    InvalidInput,
    LostRace,
    StoreRefused,
    StoreUnavailable,
    Terminal,
)
from controller.domain.policy import PolicyOverride
from controller.store.postgres import engine
from controller.store.postgres.engine import Store, server_process
from controller.store.postgres.prepared_statements import Prepared
from controller.store.topics import policies, topics
from tests.support.relay import Relay
from tests.support.store_driver import StoreDriver


@pytest.mark.parametrize("url", ["mysql://h/d", "nonsense", "", "postgresql://h:port/d"])
def test_other_urls_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(InvalidInput, match="database URL") as caught:
        Store(url)
    assert not url or url not in str(caught.value)


def test_an_error_takes_back_everything_the_transaction_did(driver: StoreDriver) -> None:
    def write_and_fail(tx: Connection) -> None:
        tx.execute(text("INSERT INTO cleave.namespace_policy VALUES ('t/n', '{}', 1, 'x')"))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        driver.do(write_and_fail)

    assert driver.sql("SELECT count(*) FROM cleave.namespace_policy") == [(0,)]


def test_a_broken_constraint_is_told_while_no_connection_is_free_to_read_its_comment(
    driver: StoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = "INSERT INTO cleave.namespace_policy VALUES ('t/n', '{}', 1, 'x')"
    driver.sql(insert)
    with monkeypatch.context() as patched:
        patched.setattr(engine, "load_comments", Mock(side_effect=PoolTimeout("all connections are in use")))
        with pytest.raises(Conflict, match="namespace_policy_pkey"):
            driver.sql(insert)

    with pytest.raises(Conflict):
        driver.sql(insert)


def test_a_server_that_is_away_is_retryable() -> None:
    store = Store(f"postgresql://nobody@127.0.0.1:{free_port()}/nothing")

    with pytest.raises(StoreUnavailable, match="PostgreSQL is unreachable"), store.transaction():
        pass


def test_work_that_goes_on_after_its_connection_broke_is_retryable(driver: StoreDriver) -> None:
    """As work does that bears errors of one part, in a savepoint, and goes on with the next."""

    def go_on(tx: Connection) -> None:
        terminate = "SELECT pg_terminate_backend(:pid, 10000)"
        driver.sql(terminate, pid=server_process(tx))
        with suppress(DBAPIError), tx.begin_nested():
            tx.execute(text("SELECT 1"))
        tx.execute(text("SELECT 1"))

    with pytest.raises(StoreUnavailable, match="was lost in the middle of a transaction"):
        driver.do(go_on)


@pytest.mark.parametrize(
    ("statement", "value", "cause"),
    [
        ("SELECT :value", object(), "can't adapt type 'object'"),
        ("SELECT :value", [{}], "can't adapt type 'dict'"),
    ],
)
def test_a_value_that_the_driver_cannot_bind_is_no_outage(
    driver: StoreDriver, statement: str, value: object, cause: str
) -> None:
    """Whoever tried again would try for ever."""
    with pytest.raises(Terminal, match=cause) as caught:
        driver.sql(statement, value=value)

    assert not isinstance(caught.value, InvalidInput)
    assert driver.sql("SELECT 1") == [(1,)]


def test_an_option_that_the_driver_does_not_know_is_no_outage() -> None:
    with pytest.raises(InvalidInput, match="colour"):
        Store(f"postgresql://nobody@127.0.0.1:{free_port()}/nothing?colour=blue")


def test_a_cut_connection_costs_one_transaction_at_most(driver: StoreDriver) -> None:
    with pytest.raises(StoreUnavailable), driver.store.transaction() as tx:
        tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    assert driver.sql("SELECT 1") == [(1,)]


def test_a_part_that_bears_the_loss_of_the_connection_leaves_an_outage_and_no_other_error(
    driver: StoreDriver,
) -> None:
    """As decisions in shadow do, which must not stop what is live."""

    def bear_and_go_on(tx: Connection) -> None:
        with contextlib.suppress(DBAPIError), tx.begin_nested():
            tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        tx.execute(text("SELECT 1"))

    with pytest.raises(StoreUnavailable, match="in the middle of a transaction"):
        driver.do(bear_and_go_on)

    assert driver.sql("SELECT 1") == [(1,)]


def test_idle_connections_that_were_cut_are_replaced_unnoticed(driver: StoreDriver, database: str) -> None:
    [(pid,)] = driver.sql("SELECT pg_backend_pid()")
    killer = StoreDriver(database)
    killer.sql("SELECT pg_terminate_backend(:pid, 10000)", pid=pid)
    killer.store.dispose()

    assert driver.sql("SELECT pg_backend_pid()") != [(pid,)]


def test_a_server_that_restarts_is_away_and_then_works(tmp_path: Path) -> None:
    """The first transaction may meet the old server's end; no later one does, on however many connections."""
    with EmbeddedPostgres(tmp_path, settings=FORGETFUL) as server:
        store = Store(server.url("postgres"), pool_size=3)
        with store.transaction() as a, store.transaction() as b, store.single_statement() as c:
            before = {tx.execute(text("SELECT pg_backend_pid()")).scalar_one() for tx in (a, b, c)}
        server.kill()
        with pytest.raises(StoreUnavailable), store.transaction():
            pass
        server.start()

        with store.transaction() as a, store.transaction() as b, store.single_statement() as c:
            after = {tx.execute(text("SELECT pg_backend_pid()")).scalar_one() for tx in (a, b, c)}
        store.dispose()
        server.destroy()

    assert (len(before), len(after)) == (3, 3)


_HBA = """\
host all      postgres 127.0.0.1/32 scram-sha-256
host all      banned   127.0.0.1/32 reject
host all      guessed  127.0.0.1/32 ident
host all      retired  127.0.0.1/32 trust
host all      nobody   127.0.0.1/32 trust
host all      guest    127.0.0.1/32 trust
"""
_REFUSALS = {
    ("postgres:wrong", "postgres"): 'password authentication failed for user "postgres"',
    ("postgres", "postgres"): "no password supplied",
    ("banned", "postgres"): 'pg_hba.conf rejects connection for host "127.0.0.1", user "banned"',
    ("stranger", "postgres"): 'no pg_hba.conf entry for host "127.0.0.1", user "stranger"',
    ("guessed", "postgres"): 'Ident authentication failed for user "guessed"',
    ("retired", "postgres"): 'role "retired" is not permitted to log in',
    ("nobody", "postgres"): 'role "nobody" does not exist',
    ("guest", "postgres"): 'permission denied for database "postgres"',
    ("guest", "elsewhere"): 'database "elsewhere" does not exist',
}


def test_a_login_that_the_server_does_not_let_in_is_refused_and_not_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    with EmbeddedPostgres(tmp_path, settings=FORGETFUL) as server:
        StoreDriver(server.url("postgres")).sql(
            "CREATE ROLE guest LOGIN; CREATE ROLE retired NOLOGIN; REVOKE CONNECT ON DATABASE postgres FROM PUBLIC"
        )
        server.stop()
        (server.room / "data" / "pg_hba.conf").write_text(_HBA)
        server.start()
        said = {}
        for login, database in _REFUSALS:
            store = Store(f"postgresql://{login}@127.0.0.1:{server.port}/{database}")
            with pytest.raises(StoreUnavailable) as caught, store.transaction():
                pass
            said[login, database] = caught.value
        server.destroy()

    for wrong, sentence in _REFUSALS.items():
        assert isinstance(said[wrong], StoreRefused), said[wrong]
        assert sentence in said[wrong].message


@pytest.mark.parametrize("state", ["28000", "28P01", "3D000"])
def test_a_refusal_that_has_a_sqlstate_is_told_by_it(driver: StoreDriver, state: str) -> None:
    """In any language: a pool between us and the server may hand on what the server said."""
    with pytest.raises(StoreRefused, match="kein Zutritt"):
        driver.sql(f"DO $$ BEGIN RAISE 'kein Zutritt' USING ERRCODE = '{state}'; END $$")


@pytest.mark.parametrize(("ping_after_seconds", "pings"), [(0.0, 3), (3600.0, 0)])
def test_only_a_connection_idle_for_long_is_asked_whether_it_lives(
    database: str, monkeypatch: pytest.MonkeyPatch, ping_after_seconds: float, pings: int
) -> None:
    monkeypatch.setattr(engine, "PING_AFTER_SECONDS", ping_after_seconds)
    store = Store(database, pool_size=1)
    ping = Mock(wraps=store._engine.dialect.do_ping)
    monkeypatch.setattr(store._engine.dialect, "do_ping", ping)

    for _ in range(4):
        with store.transaction() as tx:
            tx.execute(text("SELECT 1"))
    store.dispose()

    assert ping.call_count == pings


def test_a_single_statement_that_fails_leaves_an_ordinary_connection(database: str) -> None:
    store = Store(database, pool_size=1)
    with pytest.raises(InvalidInput), store.single_statement() as tx:
        tx.execute(text("SELECT 1 / 0"))
    with pytest.raises(StoreUnavailable), store.single_statement() as tx:
        tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with store.transaction() as tx:
        tx.execute(text("INSERT INTO cleave.namespace_policy VALUES ('t/n', '{}', 1, 'x')"))
        tx.rollback()
    with store.transaction() as tx:
        assert tx.execute(text("SELECT count(*) FROM cleave.namespace_policy")).scalar_one() == 0
    store.dispose()


def test_a_single_statement_is_a_transaction_by_itself(driver: StoreDriver, database: str) -> None:
    store = Store(database, pool_size=1)
    with store.single_statement() as tx:
        tx.execute(text("INSERT INTO cleave.namespace_policy VALUES ('t/n', '{}', 1, 'x')"))
        assert driver.sql("SELECT count(*) FROM cleave.namespace_policy") == [(1,)]

    with store.transaction() as tx:  # the pool's one connection is an ordinary one again
        tx.execute(text("DELETE FROM cleave.namespace_policy"))
        tx.rollback()
    store.dispose()
    assert driver.sql("SELECT count(*) FROM cleave.namespace_policy") == [(1,)]


@pytest.mark.parametrize("begin", [Store.transaction, Store.single_statement])
def test_a_transaction_whose_commit_got_no_answer_may_be_committed(
    driver: StoreDriver, database: str, begin: Callable[[Store], AbstractContextManager[Connection]]
) -> None:
    def insert() -> None:
        with begin(store) as tx:
            if begin is Store.single_statement:
                relay.lose_answer()
            tx.execute(text("INSERT INTO cleave.namespace_policy VALUES ('t/n', '{}', 1, 'x')"))
            relay.lose_answer()

    with Relay.before(database) as relay:
        store = Store(relay.url_of(database), pool_size=1)
        with pytest.raises(StoreUnavailable, match="may or may not have been committed"):
            insert()
        store.dispose()

    assert driver.sql("SELECT count(*) FROM cleave.namespace_policy") == [(1,)]


def test_a_transaction_that_lost_its_connection_before_the_commit_is_not_committed(
    driver: StoreDriver,
) -> None:
    with pytest.raises(StoreUnavailable, match=r"unreachable: .*; retry$") as caught:
        driver.sql("SELECT pg_terminate_backend(pg_backend_pid())")
    assert "committed" not in caught.value.message


def test_a_deadlock_is_a_lost_race_for_one_and_a_success_for_the_other(driver: StoreDriver) -> None:
    topic_ids = [driver.create(f"topic://t/n/{name}").topic_id for name in "ab"]
    both_hold_one = threading.Barrier(2, timeout=20)

    def lock(first: int, second: int) -> str:
        statement = text("SELECT FROM cleave.topic WHERE topic_id = :id FOR UPDATE")
        try:
            with driver.store.transaction() as tx:
                tx.execute(statement, {"id": first})
                both_hold_one.wait()
                tx.execute(statement, {"id": second})
        except LostRace:
            return "lost"
        return "done"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lock, topic_ids, topic_ids[::-1])) == ["done", "lost"]


def races() -> dict[str, float]:
    """How many were lost so far, by what was to be written."""
    samples = [one for family in metrics.LOST_RACES.collect() for one in family.samples]
    return {one.labels["what"]: one.value for one in samples if one.name.endswith("_total")}


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (LostRace("the policy was set by somebody else", what="policy"), {"policy": 1}),
        (LostRace("a row moved"), {"row": 1}),
        (HeldUp("somebody holds the log"), {}),
        (InvalidInput("never right"), {}),
    ],
    ids=["of a policy", "of some row", "only held up", "no race"],
)
def test_every_lost_race_ends_its_transaction_and_is_counted_there(
    driver: StoreDriver, error: CleaveError, counted: dict[str, float]
) -> None:
    before = races()
    for begin in (driver.store.transaction, driver.store.single_statement):
        with pytest.raises(type(error)), begin():
            raise error
    assert {
        what: count - before.get(what, 0) for what, count in races().items() if count != before.get(what, 0)
    } == {what: 2 * count for what, count in counted.items()}


def test_a_stale_row_version_is_counted_as_what_it_is_of(driver: StoreDriver) -> None:
    topic = driver.create()
    before = races()
    driver.do(topics.update_topic, topic)
    with pytest.raises(LostRace):
        driver.do(topics.update_topic, topic)
    with pytest.raises(LostRace):
        driver.do(policies.set_namespace, "t/n", PolicyOverride(), actor="bob", seen_row_version=7)
    assert {what: races()[what] - before.get(what, 0) for what in ("topic", "policy")} == {
        "topic": 1,
        "policy": 1,
    }


def test_a_lock_held_too_long_is_a_lost_race(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    statement = text("SELECT FROM cleave.topic WHERE topic_id = :id FOR UPDATE")

    def impatient(tx: Connection) -> None:
        tx.execute(text("SET LOCAL lock_timeout = '10ms'"))
        tx.execute(statement, {"id": topic_id})

    with driver.store.transaction() as holder:
        holder.execute(statement, {"id": topic_id})

        before = races().get("lock", 0)
        with pytest.raises(LostRace, match="lock timeout"):
            driver.do(impatient)
        assert races()["lock"] == before + 1


@pytest.mark.parametrize("value", ["a\x00b", "a\ud800b"])
def test_text_postgresql_cannot_hold_is_bad_input(driver: StoreDriver, value: str) -> None:
    with pytest.raises(InvalidInput, match="cannot store"):
        driver.sql("SELECT CAST(:value AS text)", value=value)


def test_a_number_out_of_range_is_bad_input(driver: StoreDriver) -> None:
    with pytest.raises(InvalidInput, match="out of range"):
        driver.sql("SELECT FROM cleave.topic WHERE topic_id = CAST(:id AS bigint)", id=2**80)


def test_a_database_without_the_schema_says_to_migrate(empty_database: str) -> None:
    store = Store(empty_database)

    with pytest.raises(Terminal, match="cleave migrate"), store.transaction() as tx:
        tx.execute(text("SELECT FROM cleave.topic"))
    store.dispose()


def test_sessions_are_read_committed_and_speak_utc(driver: StoreDriver) -> None:
    assert driver.sql("SELECT current_setting('transaction_isolation'), current_setting('timezone')") == [
        ("read committed", "UTC")
    ]


def test_nobody_waits_for_a_lock_or_stands_still_in_a_transaction_for_ever(driver: StoreDriver) -> None:
    """A process that is stopped while it holds rows must not stop the others."""
    [limits] = driver.sql(
        "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'),"
        "       current_setting('idle_in_transaction_session_timeout')"
    )

    assert limits == ("30s", "48s", "2min")


def test_a_prepared_statement_survives_what_its_transaction_does_not(driver: StoreDriver) -> None:
    """It belongs to the connection, and a new connection prepares it anew."""
    store = driver.store
    double = Prepared(
        "double",
        "SELECT 2 * :number % 100 AS doubled, CAST(:word AS text)",
        {"number": "int", "word": "text"},
    )

    def doubled(number: int) -> int:
        with store.single_statement() as tx:
            return int(double.execute(tx, {"number": number, "word": "100%"}).one()[0])

    def use_and_fail(tx: Connection) -> None:
        assert double.execute(tx, {"number": 1, "word": "x"}).one() == (2, "x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        driver.do(use_and_fail)
    assert doubled(2) == 4
    store.dispose()
    assert doubled(3) == 6


def test_a_statement_whose_first_use_was_interrupted_is_prepared_again(
    driver: StoreDriver, database: str
) -> None:
    """PREPARE is not undone with its transaction. Here the plan waited too long for an index, or the PREPARE for its
    table.
    """
    store = Store(database, pool_size=1)
    one = Prepared("one", "SELECT :number", {"number": "int"})
    named = Prepared(
        "named", "SELECT 1 FROM cleave.namespace_policy WHERE namespace = :namespace", {"namespace": "text"}
    )

    def look(lock_timeout: str) -> int:
        with store.transaction() as tx:
            number = int(one.execute(tx, {"number": 7}).scalar_one())
            tx.execute(text(f"SET LOCAL lock_timeout = '{lock_timeout}'"))
            return number + len(named.execute(tx, {"namespace": "t/n"}).all())

    for hold in ("REINDEX INDEX cleave.namespace_policy_pkey", "LOCK TABLE cleave.namespace_policy"):
        with driver.store.transaction() as holder:
            holder.execute(text(hold))
            for _ in range(2):
                with pytest.raises(LostRace, match="lock timeout"):
                    look("10ms")

    assert [look("30s"), look("30s")] == [7, 7]
    names = "SELECT array_agg(name ORDER BY name) FROM pg_prepared_statements"
    with store.transaction() as tx:
        assert tx.execute(text(names)).scalar_one() == ["cleave_named", "cleave_one"]
    store.dispose()
