"""States of a server that pass: each is an outage for the store and for the embedded data plane, and ends with a new connection."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest
from sqlalchemy import text

from controller.dataplane.postgres_calls import PostgresCalls
from controller.devstack.postgres import FORGETFUL, EmbeddedPostgres
from controller.domain.errors import DataPlaneUnavailable, StoreRefused, StoreUnavailable
from controller.postgres.address import DatabaseAddress
from controller.store.postgres.arrow_copy import copy_in
from controller.store.postgres.engine import Store, server_process
from controller.store.postgres.snapshots import snapshot
from tests.support.replicated_postgres import ReplicatedPostgres, execute, value
from tests.support.waiting import wait_until

RAISE = "DO $$ BEGIN RAISE 'wait' USING ERRCODE = '{}'; END $$"
ENDED = ["08006", "25006", "25P03", "40003", "57P01", "57P02", "57P03", "57P05", "58030"]
"""States after which a connection leads nowhere."""
PASSING = [*ENDED, "53000", "53200", "53300"]
LONG = 60.0


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    """A store with one connection."""
    store = Store(database, pool_size=1)
    yield store
    store.dispose()


@pytest.fixture
def calls(database: str) -> Iterator[PostgresCalls]:
    """Calls by one connection."""
    with closing(PostgresCalls(database, call_timeout_seconds=10.0, pool_size=1)) as calls:
        yield calls


def in_store(store: Store, *statements: str) -> int:
    """The process of the store's one connection, which has executed the statements in one transaction."""
    with store.transaction() as tx:
        for statement in statements:
            tx.execute(text(statement))
        return server_process(tx)


def in_calls(calls: PostgresCalls, *statements: str) -> int:
    """The same for calls."""
    with calls.transaction("act") as cursor:
        for statement in (*statements, "SELECT pg_backend_pid()"):
            cursor.execute(statement)
        [(process,)] = cursor.fetchall()
        return int(process)


@pytest.mark.parametrize("state", PASSING)
def test_a_state_that_passes_is_an_outage(store: Store, calls: PostgresCalls, state: str) -> None:
    before = in_store(store), in_calls(calls)
    with pytest.raises(StoreUnavailable):
        in_store(store, RAISE.format(state))
    with pytest.raises(DataPlaneUnavailable):
        in_calls(calls, RAISE.format(state))

    after = in_store(store), in_calls(calls)
    assert [one != other for one, other in zip(before, after, strict=True)] == [state in ENDED] * 2


def test_a_write_in_a_transaction_that_may_not_write_is_an_outage(store: Store, calls: PostgresCalls) -> None:
    """A pooler hides whether the server is a standby, so the state alone decides."""
    statements = ("SET TRANSACTION READ ONLY", "CREATE TABLE public.never (x int)")
    with pytest.raises(StoreUnavailable, match="standby or read-only"):
        in_store(store, *statements)
    with pytest.raises(DataPlaneUnavailable, match="standby or read-only"):
        in_calls(calls, *statements)


def test_a_copy_to_a_server_that_may_not_write_leaves_that_server(store: Store) -> None:
    before = in_store(store)

    def copy() -> None:
        with store.transaction() as tx:
            tx.execute(text("SET TRANSACTION READ ONLY"))
            copy_in(tx, "cleave.namespace_policy (namespace)", [pa.record_batch({"policy": ["x"]})])

    with pytest.raises(StoreUnavailable, match="standby or read-only"):
        copy()

    assert in_store(store) != before


@pytest.mark.parametrize("state", ["26000", "42P05"])
def test_a_session_that_was_shared_is_named_as_such(store: Store, calls: PostgresCalls, state: str) -> None:
    before = in_store(store)
    with pytest.raises(StoreRefused, match="pool_mode = session"):
        in_store(store, RAISE.format(state))
    with pytest.raises(DataPlaneUnavailable, match="pool_mode = session"):
        in_calls(calls, RAISE.format(state))

    assert in_store(store) != before


def test_a_server_without_a_free_connection_is_away_until_there_is_one(tmp_path: Path) -> None:
    few = {**FORGETFUL, "max_connections": "4", "superuser_reserved_connections": "0"}
    with EmbeddedPostgres(tmp_path, settings=few) as server:
        url = server.url("postgres")
        store, calls = Store(url), PostgresCalls(url, call_timeout_seconds=10.0)
        others = [psycopg2.connect(DatabaseAddress.of(url).uri) for _ in range(4)]
        with pytest.raises(StoreUnavailable, match="too many clients"), store.transaction():
            pass
        with pytest.raises(DataPlaneUnavailable, match="too many clients"), calls.statement("look"):
            pass
        for one in others:
            one.close()

        def is_back() -> bool:
            try:
                with store.transaction() as tx, calls.statement("look"):
                    return server_process(tx) > 0
            except (
                StoreUnavailable,
                DataPlaneUnavailable,
            ):  # the server counts a connection until its process ends
                return False

        wait_until(is_back, message="the server has connections again")
        store.dispose()
        calls.close()
        server.destroy()


def test_a_statement_that_a_standby_cancels_for_what_it_replays_is_an_outage(tmp_path: Path) -> None:
    with ReplicatedPostgres(tmp_path) as cluster:
        execute(cluster.primary, "CREATE TABLE kept AS SELECT 1 AS number")
        cluster.add_standby(synchronous=False)
        assert cluster.standby is not None
        standby = cluster.standby
        execute(standby, "ALTER SYSTEM SET max_standby_streaming_delay = 0")
        execute(standby, "SELECT pg_reload_conf()")
        cluster.wait_replayed()
        store = Store(standby.url("postgres"), pool_size=1, application_name="reader")

        def read() -> None:
            with snapshot(store) as tx:
                tx.execute(text("SELECT pg_sleep(40) FROM kept"))

        reads = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'reader' AND wait_event = 'PgSleep'"
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(read)
            wait_until(lambda: value(standby, reads), message="the statement is under way")
            for statement in ("DELETE FROM kept", "VACUUM kept"):
                execute(cluster.primary, statement)
            error = reading.exception(LONG)

        assert isinstance(error, StoreUnavailable), error
        assert "conflict with recovery" in str(error)
        store.dispose()
