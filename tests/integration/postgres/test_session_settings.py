"""Whatever a database is set to, Cleave's sessions have the settings that their statements depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from psycopg2 import sql
from sqlalchemy import text

from controller.dataplane.postgres_calls import PostgresCalls
from controller.devstack.postgres import FORGETFUL, EmbeddedPostgres
from controller.domain.errors import InvalidInput, StoreUnavailable
from controller.domain.policy import PolicyOverride
from controller.postgres.address import DatabaseAddress
from controller.services.segment_admin import merging, splitting
from controller.store.postgres import migrations
from controller.store.postgres.engine import Store
from controller.store.topics import policies
from tests.support.bench import Bench
from tests.support.passes import HOT, WARM, decisions, report, run
from tests.support.pgbouncer import pgbouncer

SET = {
    "array_nulls": "off",
    "backslash_quote": "off",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "datestyle": "German, DMY",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "exit_on_error": "on",
    "extra_float_digits": "-15",
    "idle_in_transaction_session_timeout": "1s",
    "idle_session_timeout": "1s",
    "intervalstyle": "sql_standard",
    "lock_timeout": "1ms",
    "plan_cache_mode": "force_custom_plan",
    "plpgsql.extra_errors": "all",
    "quote_all_identifiers": "on",
    "row_security": "off",
    "search_path": "elsewhere, pg_catalog",
    "standard_conforming_strings": "off",
    "statement_timeout": "2s",
    "timezone": "Asia/Kathmandu",
    "transform_null_equals": "on",
}
"""What `ALTER DATABASE ... SET` gives every session of the database."""
BEFORE_THE_START = ("standard_conforming_strings",)
"""A pooler lets no connection change this one in time."""
SHADOWS = [
    "now() RETURNS timestamptz",
    "clock_timestamp() RETURNS timestamptz",
    "set_config(text, text, boolean) RETURNS text",
    "current_setting(text) RETURNS text",
    "pg_backend_pid() RETURNS int",
]
"""Functions that a session which searches `elsewhere` first would call instead of PostgreSQL's own."""
PRESENT = "SELECT lower(name), setting FROM pg_catalog.pg_settings WHERE lower(name) = ANY (%s) ORDER BY name"
VIEWS = """
    SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = 'inspect' AND c.relkind = 'v' ORDER BY 1
"""


def put_functions_in_the_way(url: str) -> None:
    """Make the schema `elsewhere` with them."""
    with closing(psycopg2.connect(DatabaseAddress.of(url).uri)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA elsewhere")
        for one in SHADOWS:
            cursor.execute(f"CREATE FUNCTION elsewhere.{one} LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$")
        connection.commit()


def alter(url: str, settings: Mapping[str, str]) -> None:
    """Set it for the sessions that begin from here on."""
    address = DatabaseAddress.of(url)
    name = sql.Identifier(address.parameters["dbname"])
    with closing(psycopg2.connect(address.uri)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for setting, value in settings.items():
            parts = [sql.Literal(part.strip()) for part in value.split(",")]
            statement = sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                name, sql.SQL(setting), sql.SQL(", ").join(parts)
            )
            cursor.execute(statement)


def in_force(url: str) -> list[dict[str, str]]:
    """The settings of a session of the store, and of one of the embedded plane."""
    store, found = Store(url), []
    with store.transaction() as tx:
        found.append(tx.exec_driver_sql(PRESENT, (list(SET),)).all())
    with closing(PostgresCalls(url, call_timeout_seconds=10.0)) as calls, calls.statement("look") as cursor:
        cursor.execute(PRESENT, (list(SET),))
        found.append(cursor.fetchall())
    store.dispose()
    return [dict(tuple(row) for row in rows) for rows in found]


@pytest.fixture(params=["direct", "pooled"])
def unusual(request: pytest.FixtureRequest, empty_database: str, tmp_path: Path) -> Iterator[str]:
    """URL of a database that is set to everything; through a pooler that refuses startup options, too."""
    put_functions_in_the_way(empty_database)
    if request.param == "direct":
        alter(empty_database, SET)
        yield empty_database
        return
    alter(empty_database, {name: value for name, value in SET.items() if name not in BEFORE_THE_START})
    with pgbouncer(empty_database, tmp_path, "session") as url:
        yield url


def test_sessions_are_as_those_of_any_other_database(unusual: str, database: str) -> None:
    assert in_force(unusual) == in_force(database)


def test_a_topic_lives_as_in_any_other_database(unusual: str) -> None:
    migrations.migrate(unusual)
    with closing(Bench(unusual)) as bench:
        bench.topic_with(2)
        with bench.store.transaction() as tx:
            policies.set_topic(tx, bench.topic_id, PolicyOverride(profile="pip483"))
        bench.publish(0)
        report(bench, {0: HOT, 1: WARM})
        [operation_id] = run(bench).operation_ids
        bench.drive(operation_id)
        bench.reshape(splitting(1))
        bench.reshape(merging(4, 5))

        assert bench.unread("billing") == 3
        assert [one["kind"] for one in decisions(bench)[0].decisions] == ["split"]
        assert [one.segment_id for one in bench.layout.active] == [2, 3, 6]
        bench.check_laws()
        for view in bench.rows(VIEWS):
            bench.rows(f"SELECT * FROM inspect.{view[0]}")


def test_a_pooler_that_hides_how_strings_are_quoted_is_refused(empty_database: str, tmp_path: Path) -> None:
    """The driver would quote values for one way, and the server read them in the other."""
    alter(empty_database, {"standard_conforming_strings": "off"})
    with pgbouncer(empty_database, tmp_path, "session") as url:
        store = Store(url)
        with pytest.raises(InvalidInput, match="RESET standard_conforming_strings"), store.transaction():
            pass


def test_a_server_that_takes_no_writes_is_not_talked_into_it(tmp_path: Path) -> None:
    """People fence a primary so, while another takes its place."""
    fenced = {**FORGETFUL, "default_transaction_read_only": "on"}
    with EmbeddedPostgres(tmp_path, settings=fenced) as server:
        store = Store(server.url("postgres"))

        with pytest.raises(StoreUnavailable, match="standby or read-only"), store.transaction() as tx:
            tx.execute(text("CREATE TABLE public.never (x int)"))
        store.dispose()
        server.destroy()
