"""`cleave migrate`: once, in order, by one at a time, and not over a history that changed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.devstack.postgres import PostgresServer
from controller.domain.errors import CleaveError, Conflict
from controller.domain.key_hash import key_hash
from controller.domain.policy import AutoScalePolicy
from controller.store.postgres.migrations import migrate, pending, sql_directory
from tests.support.store_driver import StoreDriver


@pytest.fixture
def sql(tmp_path: Path) -> Path:
    """A copy of the SQL files to change."""
    return shutil.copytree(sql_directory(), tmp_path / "sql")


@pytest.fixture
def empty(empty_database: str) -> Iterator[StoreDriver]:
    driver = StoreDriver(empty_database)
    yield driver
    driver.store.dispose()


def _tables(driver: StoreDriver) -> set[str]:
    return {name for (name,) in driver.sql("SELECT schemaname || '.' || tablename FROM pg_tables")}


def test_everything_is_applied_once_in_order(empty_database: str, empty: StoreDriver) -> None:
    names = sorted(path.stem for path in (sql_directory() / "migrations").glob("*.sql"))
    assert pending(empty_database) == names

    assert migrate(empty_database) == [*names, "views"]
    assert pending(empty_database) == []
    ledger = empty.sql("SELECT * FROM cleave.migration ORDER BY name")

    assert migrate(empty_database) == []
    assert empty.sql("SELECT * FROM cleave.migration ORDER BY name") == ledger


def test_two_at_once_on_an_empty_database_make_one_schema(empty_database: str) -> None:
    together = threading.Barrier(3, timeout=30)
    outcomes: list[list[str] | CleaveError] = []

    def run() -> None:
        together.wait()
        try:
            outcomes.append(migrate(empty_database))
        except CleaveError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(bool(outcome) for outcome in outcomes) == [False, False, True]
    assert [outcome for outcome in outcomes if isinstance(outcome, CleaveError)] == []


def test_a_file_changed_after_it_was_applied_is_refused(empty_database: str, sql: Path) -> None:
    migrate(empty_database, sql)
    changed = sql / "migrations" / "0002_operations.sql"
    changed.write_text(changed.read_text() + "-- a second thought\n")

    for attempt in (migrate, pending):
        with pytest.raises(
            Conflict, match="0002_operations was changed after it was applied; restore the file"
        ):
            attempt(empty_database, sql)


def test_a_database_ahead_of_the_program_is_refused(empty_database: str, sql: Path) -> None:
    newest = sql / "migrations" / "9999_from_the_future.sql"
    newest.write_text("CREATE TABLE cleave.future ();")
    migrate(empty_database, sql)

    with pytest.raises(Conflict, match="9999_from_the_future was applied by a newer program; upgrade"):
        migrate(empty_database)


def test_a_file_that_comes_before_one_already_applied_is_refused(empty_database: str, sql: Path) -> None:
    migrate(empty_database, sql)
    (sql / "migrations" / "0002_forgotten.sql").write_text("SELECT 1;")

    with pytest.raises(Conflict, match="give it a higher number"):
        migrate(empty_database, sql)


def test_a_failing_file_leaves_nothing_behind_and_names_what_is_wrong(
    empty_database: str, empty: StoreDriver, sql: Path
) -> None:
    migrate(empty_database, sql)
    before = _tables(empty)
    (sql / "migrations" / "9998_good.sql").write_text("CREATE TABLE cleave.good ();")
    (sql / "migrations" / "9999_bad.sql").write_text("CREATE TABLE cleave.bad (x nonsense);")

    with pytest.raises(CleaveError, match='type "nonsense" does not exist'):
        migrate(empty_database, sql)

    assert _tables(empty) == before
    assert pending(empty_database, sql) == ["9998_good", "9999_bad"]


def test_what_was_approved_before_approvals_had_an_instant_has_one(
    empty_database: str, empty: StoreDriver, sql: Path
) -> None:
    later = [file for file in (sql / "migrations").iterdir() if file.name >= "0020"]
    held = {file: file.read_bytes() for file in (*later, *(sql / "views").iterdir())}
    for file in held:
        file.unlink()
    migrate(empty_database, sql)
    empty.sql(
        "INSERT INTO cleave.namespace_bundles (cluster, namespace, boundaries, mode)"
        " VALUES ('c', 't/ns', '{0,4294967295}', 'approval')"
    )
    empty.sql(
        "INSERT INTO cleave.bundle_decision"
        " (cluster, request_key, decided_at, decided_by, code_version, inputs, outcome)"
        " VALUES ('c', 'r', now(), 'b', '1', '{}', '{}')"
    )
    empty.sql(
        "INSERT INTO cleave.bundle_proposal"
        " (cycle_id, ordinal, cluster, namespace, lower_bound, upper_bound, kind, reason, actor)"
        " VALUES (1, 1, 'c', 't/ns', 0, 4294967295, 'unload', 'r', 'b')"
    )
    [(approved_at,)] = empty.sql("UPDATE cleave.bundle_proposal SET state = 'approved' RETURNING changed_at")

    for file, content in held.items():
        file.write_bytes(content)
    migrate(empty_database, sql)

    assert empty.sql("SELECT state, approved_at FROM cleave.bundle_proposal") == [("approved", approved_at)]


def test_views_are_rebuilt_when_they_or_the_tables_change_and_only_then(
    empty_database: str, empty: StoreDriver, sql: Path
) -> None:
    migrate(empty_database, sql)
    (sql / "views" / "zz_more.sql").write_text("CREATE VIEW inspect.more AS SELECT '100%' AS share;")
    assert migrate(empty_database, sql) == ["views"]
    assert empty.sql("SELECT share FROM inspect.more") == [("100%",)]

    (sql / "views" / "zz_more.sql").unlink()
    (sql / "migrations" / "9999_drop.sql").write_text(
        "ALTER TABLE cleave.topic DROP COLUMN deleted_at CASCADE; ALTER TABLE cleave.topic ADD deleted_at timestamptz;"
    )
    assert migrate(empty_database, sql) == ["9999_drop", "views"]
    assert empty.sql("SELECT to_regclass('inspect.more')") == [(None,)]
    assert empty.sql("SELECT count(deleted_at) FROM inspect.topics") == [(0,)]


def test_the_defaults_of_the_policy_are_those_of_the_domain(empty_database: str, empty: StoreDriver) -> None:
    migrate(empty_database)
    empty.sql("UPDATE cleave.policy_default SET value = '1' WHERE knob = 'max_segments'")
    empty.sql("INSERT INTO cleave.policy_default VALUES ('knob_of_old', '1')")

    assert migrate(empty_database) == []

    stored = {knob: value for knob, value in empty.sql("SELECT knob, value FROM cleave.policy_default")}  # noqa: C416
    assert stored == AutoScalePolicy().to_document()


def test_whoever_migrates_everything_belongs_to_the_owner(
    postgres_server: PostgresServer, empty_database: str, empty: StoreDriver
) -> None:
    """A plain member of cleave_owner is enough once the role exists."""
    name = empty_database.rpartition("/")[2]
    empty.sql("""DO $$ BEGIN
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'cleave_owner') THEN CREATE ROLE cleave_owner NOLOGIN; END IF;
    END $$""")
    user = f"migrator_{name}"
    empty.sql(f"CREATE ROLE {user} LOGIN PASSWORD 'pw' IN ROLE cleave_owner")
    empty.sql(f"GRANT CREATE ON DATABASE {name} TO cleave_owner")
    try:
        migrate(postgres_server.url(name, user=user, password="pw"))

        owners = empty.sql("""
            SELECT DISTINCT pg_get_userbyid(owner) FROM (
                SELECT relowner FROM pg_class WHERE relnamespace::regnamespace::text IN ('cleave', 'inspect', 'staging')
                UNION ALL
                SELECT proowner FROM pg_proc WHERE pronamespace::regnamespace::text IN ('cleave', 'inspect', 'staging')
            ) AS objects (owner)
        """)
        assert owners == [("cleave_owner",)]
        assert empty.sql("SELECT DISTINCT applied_by FROM cleave.migration") == [(user,)]
    finally:
        empty.sql(f"DROP OWNED BY {user}")
        empty.sql(f"DROP ROLE {user}")


def test_a_deployer_needs_no_superuser_and_others_are_told_so(pristine_server: PostgresServer) -> None:
    """Owner of the database and allowed to create roles: roles made for one database serve the next."""
    admin = StoreDriver(pristine_server.create_database("admin"))
    for user, rights in {"deployer": "CREATEROLE", "nobody": ""}.items():
        admin.sql(f"CREATE ROLE {user} LOGIN PASSWORD 'pw' {rights}")
    for database in ("first", "second"):
        owner = StoreDriver(pristine_server.create_database(database))
        owner.sql(f"ALTER DATABASE {database} OWNER TO deployer")

        with pytest.raises(CleaveError, match="may not do this"):
            migrate(pristine_server.url(database, user="nobody", password="pw"))
        assert "views" in migrate(pristine_server.url(database, user="deployer", password="pw"))
        assert migrate(pristine_server.url(database, user="deployer", password="pw")) == []

        assert owner.sql("""
            SELECT DISTINCT pg_get_userbyid(proowner) FROM pg_proc
             WHERE prosecdef AND pronamespace = 'cleave'::regnamespace
        """) == [("cleave_owner",)]
        owner.store.dispose()
    assert admin.sql("SELECT rolsuper FROM pg_roles WHERE rolname = 'cleave_owner'") == [(False,)]
    admin.store.dispose()


def test_cursors_and_messages_from_before_entry_buckets_go_on_as_they_were(
    empty_database: str, empty: StoreDriver, sql: Path
) -> None:
    """0031 divides nothing: each cursor is one part where it was, and a message's bucket is that of its key."""
    later = [path for path in (sql / "migrations").glob("*.sql") if path.name >= "0031"]
    later += (sql / "views").glob("*.sql")  # they are those of the newest schema
    kept = {path: path.read_text() for path in later}
    for path in later:
        path.unlink()
    migrate(empty_database, sql)
    empty.sql("INSERT INTO embedded.log (name, next_offset) VALUES ('segment://t/n/x/0000-ffff-0', 2)")
    empty.sql(
        "INSERT INTO embedded.message (log_id, log_offset, published_at, key, payload)"
        " SELECT 1, n, now(), convert_to('key', 'UTF8'), '' FROM generate_series(0, 1) n"
    )
    empty.sql(
        "INSERT INTO embedded.cursor (log_id, subscription, position, generation, owner) VALUES (1, 's', 1, 41, 'a')"
    )
    for path, text in kept.items():
        path.write_text(text)

    migrate(empty_database, sql)

    assert empty.sql("SELECT first_hash, last_hash, position, generation, owner FROM embedded.cursor") == [
        (0, 65535, 1, 41, "a")
    ]
    bucket = key_hash(b"key").bucket_hash
    taken = empty.sql(
        "SELECT outcome, generation > 41, start FROM embedded.take('segment://t/n/x/0000-ffff-0', 's', 'b', '{}', :b, :b)",
        b=bucket,
    )
    assert taken == [("taken", True, 1)]
    read = "SELECT log_offset, payload IS NULL FROM embedded.read(1, 's', (SELECT generation FROM embedded.cursor WHERE owner = 'b'), 1, 9, 9, 9, 0)"
    assert empty.sql(read) == [(1, False), (2, True)]
    assert empty.sql("SELECT first_offset, incarnation FROM embedded.timeline") == [(0, "")]


def test_a_migrator_who_may_make_no_role_is_told_which_one_is_missing(
    pristine_server: PostgresServer,
) -> None:
    """Later versions bring roles; whoever has installed an earlier one as a plain owner cannot make them."""
    admin = StoreDriver(pristine_server.create_database("roles"))
    admin.sql("CREATE ROLE plain LOGIN PASSWORD 'pw'")
    admin.sql("ALTER DATABASE roles OWNER TO plain")
    for role in ("cleave_owner", "cleave_controller", "cleave_spark_loader", "cleave_inspector"):
        admin.sql(f"CREATE ROLE {role} NOLOGIN")
    admin.sql("GRANT cleave_owner TO plain")
    admin.store.dispose()

    with pytest.raises(CleaveError, match=r"no role cleave_client.*CREATE ROLE cleave_client NOLOGIN"):
        migrate(pristine_server.url("roles", user="plain", password="pw"))
