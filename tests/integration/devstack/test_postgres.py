"""The embedded PostgreSQL, started for real: lifecycle, isolation of databases, crash, foreign binaries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg2
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from controller.devstack.failure import DevstackFailed
from controller.devstack.ports import is_listening
from controller.devstack.postgres import DURABLE, SUPERUSER, EmbeddedPostgres, PostgresServer
from tests.support.scratch import scratch
from tests.support.waiting import wait_until


def fetch(url: str, statement: str) -> list[tuple[object, ...]]:
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []
    finally:
        engine.dispose()


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(scratch(tmp_path_factory, "devstack"), settings=DURABLE)
    try:
        server.start()
        yield server
    finally:
        server.destroy()


def test_a_database_is_a_copy_of_its_template_and_then_its_own(postgres_server: PostgresServer) -> None:
    template = postgres_server.create_database("devstack_template")
    fetch(template, "CREATE TABLE thing (name text)")
    copy = postgres_server.create_database("devstack_copy", template="devstack_template")
    fetch(copy, "INSERT INTO thing VALUES ('only here')")

    assert fetch(copy, "SELECT name FROM thing") == [("only here",)]
    assert fetch(template, "SELECT name FROM thing") == []

    postgres_server.drop_database("devstack_copy")
    postgres_server.drop_database("devstack_template")
    postgres_server.drop_database("devstack_template")  # a second time is no error
    with pytest.raises(OperationalError, match="does not exist"):
        fetch(copy, "SELECT 1")


def test_the_url_of_another_role_carries_that_role(postgres_server: PostgresServer) -> None:
    fetch(postgres_server.url("postgres"), "CREATE ROLE visitor LOGIN PASSWORD 'p@ss/word'")
    url = postgres_server.url("postgres", user="visitor", password="p@ss/word")

    assert fetch(url, "SELECT current_user") == [("visitor",)]

    fetch(postgres_server.url("postgres"), "DROP ROLE visitor")


def test_data_survives_a_stop_and_a_crash(server: EmbeddedPostgres) -> None:
    url = server.create_database("kept")
    fetch(url, "CREATE TABLE thing AS SELECT 1 AS n")
    server.stop()

    assert not is_listening(server.port)

    server.start()
    fetch(server.url("kept"), "INSERT INTO thing VALUES (2)")
    server.kill()
    server.start()

    assert fetch(server.url("kept"), "SELECT n FROM thing ORDER BY n") == [(1,), (2,)]


def test_it_asks_for_the_password_and_listens_on_loopback_only(server: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg2.OperationalError, match="password"):
        psycopg2.connect(
            host="127.0.0.1", port=server.port, user=SUPERUSER, password="wrong", dbname="postgres"
        )

    listening = {
        connection.laddr.ip
        for connection in psutil.Process(server.pid).net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_a_port_in_use_is_reported_with_postgres_own_words(server: EmbeddedPostgres, tmp_path: Path) -> None:
    second = EmbeddedPostgres(tmp_path / "second", port=server.port)
    try:
        with pytest.raises(DevstackFailed, match="could not bind"):
            second.start()
    finally:
        second.destroy()


def test_destroy_leaves_no_file_behind(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "short-lived")
    server.start()
    room = server.room
    assert (room / "data" / "PG_VERSION").exists()

    server.destroy()

    assert not room.exists()
    assert not (tmp_path / "short-lived").exists()


def test_a_directory_that_was_removed_starts_anew(tmp_path: Path) -> None:
    """As root its data may lie elsewhere, under a password that went with the directory."""
    for _ in range(2):
        server = EmbeddedPostgres(tmp_path / "again")
        server.start()
        server.create_database("of_this_start")
        server.stop()
        shutil.rmtree(tmp_path / "again")
    server.destroy()


def test_a_first_start_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "cut-short")
    try:
        with server:
            server.create_database("never_told_of")
        (tmp_path / "cut-short" / "password").unlink()  # which is written last

        with server:
            server.create_database("never_told_of")
    finally:
        server.destroy()


def test_data_whose_making_failed_is_not_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedPostgres(tmp_path / "failed")
    try:
        with server:
            shutil.rmtree(server.room / "data", ignore_errors=True)  # and its password is there

        def fails(*_: object, **__: object) -> str:
            (server.room / "data").mkdir()
            (server.room / "data" / "PG_VERSION").touch()
            raise DevstackFailed("no space left")

        monkeypatch.setattr("controller.devstack.postgres.run_checked", fails)
        with pytest.raises(DevstackFailed, match="no space left"):
            server.start()
        monkeypatch.undo()

        with server:
            server.create_database("works")
    finally:
        server.destroy()


def test_what_another_process_left_is_destroyed_too(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "left") as server:
        room = server.room

    EmbeddedPostgres(tmp_path / "left").destroy()

    assert not room.exists()
    assert not (tmp_path / "left").exists()


def test_it_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from controller.devstack.postgres import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(Path(sys.argv[1])); server.start()\n"
        "print(server.pid, server.port, server.room, flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "orphan")], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pid, port, room = starter.stdout.readline().split()
    starter.kill()
    starter.wait()
    starter.stdout.close()

    wait_until(lambda: not is_listening(int(port)), message=f"PostgreSQL {pid} ends with its starter")
    shutil.rmtree(room, ignore_errors=True)


DEBIAN = Path("/usr/lib/postgresql/15/bin")


@pytest.mark.skipif(not (DEBIAN / "initdb").exists(), reason="needs Debian's postgresql-15")
def test_another_installation_serves_as_well(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "debian", binaries=DEBIAN)
    try:
        server.start()
        assert str(fetch(server.url("postgres"), "SHOW server_version_num")[0][0]).startswith("15")
    finally:
        server.destroy()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another account")
def test_binaries_the_account_cannot_reach_are_refused_in_one_line(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    server = EmbeddedPostgres(tmp_path / "data", binaries=closed)
    try:
        with pytest.raises(DevstackFailed, match="make the path accessible"):
            server.start()
    finally:
        server.destroy()
