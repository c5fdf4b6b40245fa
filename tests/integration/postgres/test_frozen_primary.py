"""A primary that hangs keeps no connection waiting: each goes on at the promoted standby."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from controller.dataplane.postgres_calls import PostgresCalls
from controller.dataplane.postgres_listener import PostgresListener
from controller.devstack.postgres import PostgresServer
from controller.domain.errors import DataPlaneTimeout, StoreUnavailable
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import connect
from controller.postgres.listener import Listener
from controller.store.postgres import engine
from controller.store.postgres.engine import Store
from tests.support.replicated_postgres import Address, ReplicatedPostgres, execute
from tests.support.silent_server import SilentServer

STATEMENT_SECONDS = 2.0
LONG = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedPostgres]:
    """A primary with the table `kept`, and a standby that follows it."""
    with ReplicatedPostgres(tmp_path) as cluster:
        execute(cluster.primary, "CREATE TABLE kept (word text)")
        cluster.add_standby(synchronous=False)
        yield cluster


def freeze(cluster: ReplicatedPostgres) -> int:
    """Freeze the primary once the standby has everything; returns the port of the frozen server."""
    cluster.wait_replayed()
    cluster.freeze_primary()
    return cluster.primary.port


def port_of(tx: Connection) -> int:
    return int(tx.execute(text("SELECT inet_server_port()")).scalar_one())


def test_each_wait_of_a_store_ends_and_the_next_transaction_is_at_the_promoted_standby(
    cluster: ReplicatedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(cluster.url("postgres", Address.HOSTS), pool_size=4, statement_seconds=STATEMENT_SECONDS)
    frozen, ready = threading.Event(), threading.Barrier(4, timeout=LONG)

    def statement() -> None:
        with store.transaction() as tx:
            tx.execute(text("INSERT INTO kept VALUES ('statement')"))
            ready.wait()
            frozen.wait(LONG)
            tx.execute(text("SELECT 1"))

    def commit() -> None:
        with store.transaction() as tx:
            tx.execute(text("INSERT INTO kept VALUES ('commit')"))
            ready.wait()
            frozen.wait(LONG)

    def single() -> None:
        with store.single_statement() as tx:
            ready.wait()
            frozen.wait(LONG)
            tx.execute(text("INSERT INTO kept VALUES ('single')"))

    with ThreadPoolExecutor(3) as threads:
        with store.transaction() as tx:  # stays idle in the pool
            assert port_of(tx) == cluster.primary.port
            waits = [threads.submit(act) for act in (statement, commit, single)]
            ready.wait()
        hung = freeze(cluster)
        frozen.set()
        try:
            errors = [one.exception(LONG) for one in waits]
        finally:
            if not all(one.done() for one in waits):
                cluster.thaw()  # or the threads would never end

    line = f"PostgreSQL at 127.0.0.1:{hung} did not answer within 2 s"
    assert [isinstance(one, StoreUnavailable) and line in str(one) for one in errors] == [True] * 3, errors
    cluster.promote()
    monkeypatch.setattr(engine, "PING_AFTER_SECONDS", 0.0)  # what is idle is asked first
    with store.transaction() as tx:
        assert port_of(tx) == cluster.primary.port
        assert tx.execute(text("SELECT count(*) FROM kept")).scalar_one() == 0
    store.dispose()


def test_listeners_notice_that_nothing_can_come_and_begin_anew_at_the_promoted_standby(
    cluster: ReplicatedPostgres,
) -> None:
    heard: queue.Queue[int | str] = queue.Queue()
    background = PostgresListener(
        cluster.url("postgres", Address.HOSTS),
        ["news"],
        on_notification=heard.put,
        on_gap=lambda: heard.put("gap"),
    )
    with Listener(cluster.url("postgres", Address.HOSTS), ["news"]) as listener, closing(background):
        background.start()
        assert [one.is_resync for one in listener.wait(LONG)] == [True]
        assert heard.get(timeout=LONG) == "gap"

        freeze(cluster)
        cluster.promote()

        assert [one.is_resync for one in listener.wait(LONG)] == [True]
        assert heard.get(timeout=LONG) == "gap"
        execute(cluster.primary, "NOTIFY news, '17'")
        assert [one.payload for one in listener.wait(LONG)] == ["17"]
        assert heard.get(timeout=LONG) == 17


def test_connections_to_a_primary_that_wakes_up_beside_its_successor_are_not_used(
    cluster: ReplicatedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old primary still accepts writes. What the process has learnt by one connection holds for all."""
    monkeypatch.setattr("controller.postgres.listener.SILENT_SECONDS", 0.0)
    url = cluster.url("postgres", Address.HOSTS)
    store, calls = Store(url, application_name="test"), PostgresCalls(url, call_timeout_seconds=LONG)
    with Listener(url, ["news"]) as listener:
        assert [one.is_resync for one in listener.wait(LONG)] == [True]
        with store.transaction() as tx, calls.statement("look") as cursor:
            tx.execute(text("SELECT 1"))
            cursor.execute("SELECT 1")
        freeze(cluster)
        cluster.promote()
        with closing(
            connect(DatabaseAddress.of(url), application_name="test", statement_seconds=LONG)
        ) as made:
            assert made.info.port == cluster.primary.port

        cluster.thaw()

        with store.transaction() as tx:
            assert port_of(tx) == cluster.primary.port
        with calls.statement("look") as cursor:
            cursor.execute("SELECT inet_server_port()")
            assert cursor.fetchone() == (cluster.primary.port,)
        assert [one.is_resync for one in listener.wait(LONG)] == [True]
        execute(cluster.primary, "NOTIFY news, '19'")
        assert [one.payload for one in listener.wait(LONG)] == ["19"]
    store.dispose()
    calls.close()


def test_a_listener_whose_server_answers_hears_on_however_silent_it_is(
    cluster: ReplicatedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.postgres.listener.SILENT_SECONDS", 0.0)
    with Listener(cluster.url("postgres", Address.HOSTS), ["news"]) as listener:
        listener.wait(LONG)

        assert listener.wait(0.0) == []
        listener.interrupt()
        assert listener.wait(LONG) == []
        execute(cluster.primary, "NOTIFY news, '18'")
        assert [one.payload for one in listener.wait(LONG)] == ["18"]


def test_an_attempt_to_connect_to_a_frozen_host_goes_on_to_the_next(cluster: ReplicatedPostgres) -> None:
    """The kernel of the frozen host completes the handshake, so it is the authentication that hangs."""
    address = DatabaseAddress.of(cluster.url("postgres", Address.HOSTS))
    freeze(cluster)
    cluster.promote()

    with closing(connect(address, application_name="test", statement_seconds=LONG)) as made:
        assert made.info.port == cluster.primary.port


def test_a_transaction_that_finds_no_server_makes_one_attempt() -> None:
    """A second one, for the sentences of constraints, would double the time that a frozen server costs."""
    with SilentServer() as frozen:
        store = Store(f"postgresql://u@127.0.0.1:{frozen.port}/d?connect_timeout=2")
        with pytest.raises(StoreUnavailable, match="timeout expired"), store.transaction():
            pass

        assert frozen.attempts() == 1


def test_the_server_that_served_last_is_tried_first(postgres_server: PostgresServer) -> None:
    """Each attempt at a frozen host costs its time."""
    login = DatabaseAddress.of(postgres_server.url("postgres")).parameters
    with SilentServer() as frozen:
        hosts = f"127.0.0.1:{frozen.port},{login['host']}:{login['port']}"
        address = DatabaseAddress.of(
            f"postgresql://{login['user']}:{login['password']}@{hosts}/postgres?target_session_attrs=read-write"
        )
        attempts = []
        for _ in range(2):
            with closing(connect(address, application_name="test", statement_seconds=LONG)) as made:
                assert str(made.info.port) == login["port"]
            attempts.append(frozen.attempts())

    assert attempts == [1, 0]


def test_a_call_of_the_data_plane_ends_and_the_next_one_is_at_the_promoted_standby(
    cluster: ReplicatedPostgres,
) -> None:
    calls = PostgresCalls(cluster.url("postgres", Address.HOSTS), call_timeout_seconds=5.0)
    with calls.statement("keep") as cursor:
        cursor.execute("INSERT INTO kept VALUES ('before')")
    freeze(cluster)

    with pytest.raises(DataPlaneTimeout, match="keep: no answer"), calls.statement("keep") as cursor:
        cursor.execute("INSERT INTO kept VALUES ('frozen')")

    cluster.promote()
    with calls.statement("keep") as cursor:
        cursor.execute("INSERT INTO kept VALUES ('after') RETURNING inet_server_port()")
        assert cursor.fetchone() == (cluster.primary.port,)
    calls.close()


def test_a_standby_is_left_once_it_refuses_a_write(cluster: ReplicatedPostgres) -> None:
    """A proxy, or a URL without target_session_attrs, may lead to it."""
    assert cluster.standby is not None
    url = cluster.standby.url("postgres")
    store, calls = Store(url, pool_size=1), PostgresCalls(url, call_timeout_seconds=10.0)

    with pytest.raises(StoreUnavailable, match="target_session_attrs=read-write"), store.transaction() as tx:
        tx.execute(text("INSERT INTO kept VALUES ('x')"))
    with pytest.raises(Exception, match="target_session_attrs=read-write"), calls.statement("keep") as cursor:
        cursor.execute("INSERT INTO kept VALUES ('x')")
    with Listener(url, ["news"]) as listener, pytest.raises(StoreUnavailable):
        listener.wait(LONG)

    cluster.promote()
    with store.transaction() as tx:
        tx.execute(text("INSERT INTO kept VALUES ('x')"))
    with calls.statement("keep") as cursor:
        cursor.execute("INSERT INTO kept VALUES ('x')")
    store.dispose()
    calls.close()
