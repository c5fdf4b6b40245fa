"""`cleave migrate`: the schema and what follows it, once, in order, by one at a time, and not over a history that changed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controller.devstack.postgres import PostgresServer
from controller.domain.errors import CleaveError, Conflict
from controller.domain.policy import AutoScalePolicy
from controller.store.postgres.migrations import (
    BASELINE,
    migrate,
    newest_applied,
    newest_known,
    plan,
    sql_directory,
)
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


def pending(url: str, sql: Path | None = None) -> list[str]:
    """Names of the files that `migrate` would apply."""
    return [script.name for script in plan(url, sql).scripts]


def _add(sql: Path, name: str, statements: str) -> None:
    (sql / "migrations" / f"{name}.sql").write_text(statements)


def test_an_empty_database_gets_the_schema_once(empty_database: str, empty: StoreDriver) -> None:
    names = [BASELINE, *sorted(path.stem for path in (sql_directory() / "migrations").glob("*.sql"))]
    assert pending(empty_database) == names

    assert migrate(empty_database) == [*names, "views"]
    assert pending(empty_database) == []
    ledger = empty.sql("SELECT * FROM cleave.migration ORDER BY name")

    assert migrate(empty_database) == []
    assert empty.sql("SELECT * FROM cleave.migration ORDER BY name") == ledger


def test_migrations_follow_the_schema_in_the_order_of_their_names(
    empty_database: str, empty: StoreDriver, sql: Path
) -> None:
    migrate(empty_database, sql)
    _add(sql, "0002_second", "ALTER TABLE cleave.first ADD later integer;")
    _add(sql, "0001_first", "CREATE TABLE cleave.first ();")

    assert pending(empty_database, sql) == ["0001_first", "0002_second"]
    assert migrate(empty_database, sql) == ["0001_first", "0002_second", "views"]
    assert pending(empty_database, sql) == migrate(empty_database, sql) == []
    with empty.store.transaction() as tx:
        assert newest_applied(tx) == "0002_second"


def test_an_empty_database_gets_the_schema_and_the_migrations_after_it(
    empty_database: str, sql: Path
) -> None:
    _add(sql, "0001_first", "CREATE TABLE cleave.first ();")

    assert migrate(empty_database, sql) == [BASELINE, "0001_first", "views"]


def test_the_newest_known_is_the_schema_until_a_migration_follows(
    empty_database: str, empty: StoreDriver
) -> None:
    migrate(empty_database)

    with empty.store.transaction() as tx:
        assert newest_applied(tx) == newest_known()


def test_two_at_once_on_an_empty_database_make_one_schema(empty_database: str) -> None:
    together = threading.Barrier(3, timeout=30)

    def run(_number: int) -> list[str]:
        together.wait()
        return migrate(empty_database)

    with ThreadPoolExecutor(3) as pool:
        assert sorted(bool(names) for names in pool.map(run, range(3))) == [False, False, True]


def test_a_migration_changed_after_it_was_applied_is_refused(empty_database: str, sql: Path) -> None:
    _add(sql, "0001_first", "CREATE TABLE cleave.first ();")
    migrate(empty_database, sql)
    _add(sql, "0001_first", "CREATE TABLE cleave.first (); -- a second thought")

    for attempt in (migrate, pending):
        with pytest.raises(Conflict, match="0001_first was changed after it was applied; restore the file"):
            attempt(empty_database, sql)


_UNRELEASED = r"not created from the schema of 0\.1\.0 but by an unreleased version.*; create a new database, or dump the data"


def test_a_database_with_the_ledger_of_an_unreleased_version_is_refused(
    empty_database: str, empty: StoreDriver
) -> None:
    migrate(empty_database)
    empty.sql("DELETE FROM cleave.migration")
    empty.sql(
        "INSERT INTO cleave.migration (name, checksum) VALUES ('0001_topics', 'a'), ('0002_operations', 'b'), ('views', 'c')"
    )
    before = _tables(empty)

    for attempt in (migrate, pending, plan):
        with pytest.raises(Conflict, match=_UNRELEASED):
            attempt(empty_database)
    assert _tables(empty) == before


def test_a_database_made_from_other_files_of_the_schema_is_refused(empty_database: str, sql: Path) -> None:
    migrate(empty_database, sql)
    changed = next((sql / "schema").glob("*.sql"))
    changed.write_text(changed.read_text() + "-- a second thought\n")

    for attempt in (migrate, pending):
        with pytest.raises(Conflict, match=_UNRELEASED):
            attempt(empty_database, sql)


def test_a_database_ahead_of_the_program_is_refused(empty_database: str, sql: Path) -> None:
    _add(sql, "9999_from_the_future", "CREATE TABLE cleave.future ();")
    migrate(empty_database, sql)

    with pytest.raises(Conflict, match="9999_from_the_future was applied by a newer version; upgrade"):
        migrate(empty_database)


def test_a_file_that_comes_before_one_already_applied_is_refused(empty_database: str, sql: Path) -> None:
    _add(sql, "0002_second", "SELECT 1;")
    migrate(empty_database, sql)
    _add(sql, "0001_forgotten", "SELECT 1;")

    with pytest.raises(Conflict, match="a higher number"):
        migrate(empty_database, sql)


def test_a_failing_file_leaves_nothing_behind_and_names_what_is_wrong(
    empty_database: str, empty: StoreDriver, sql: Path
) -> None:
    migrate(empty_database, sql)
    before = _tables(empty)
    _add(sql, "9998_good", "CREATE TABLE cleave.good ();")
    _add(sql, "9999_bad", "CREATE TABLE cleave.bad (x nonsense);")

    with pytest.raises(CleaveError, match='type "nonsense" does not exist'):
        migrate(empty_database, sql)

    assert _tables(empty) == before
    assert pending(empty_database, sql) == ["9998_good", "9999_bad"]


def test_views_are_rebuilt_when_they_or_the_tables_change_and_only_then(
    empty_database: str, empty: StoreDriver, sql: Path
) -> None:
    migrate(empty_database, sql)
    (sql / "views" / "zz_more.sql").write_text("CREATE VIEW inspect.more AS SELECT '100%' AS share;")
    assert migrate(empty_database, sql) == ["views"]
    assert empty.sql("SELECT share FROM inspect.more") == [("100%",)]

    (sql / "views" / "zz_more.sql").unlink()
    _add(
        sql,
        "9999_drop",
        "ALTER TABLE cleave.topic DROP COLUMN deleted_at CASCADE; ALTER TABLE cleave.topic ADD deleted_at timestamptz;",
    )
    assert migrate(empty_database, sql) == ["9999_drop", "views"]
    assert empty.sql("SELECT to_regclass('inspect.more')") == [(None,)]
    assert empty.sql("SELECT count(deleted_at) FROM inspect.topics") == [(0,)]


def test_the_defaults_of_the_policy_are_those_of_the_domain(empty_database: str, empty: StoreDriver) -> None:
    migrate(empty_database)
    empty.sql("UPDATE cleave.policy_default SET value = '1' WHERE parameter = 'max_segments'")
    empty.sql("INSERT INTO cleave.policy_default VALUES ('parameter_of_old', '1')")

    assert migrate(empty_database) == []

    stored = dict(empty.sql("SELECT parameter, value FROM cleave.policy_default"))
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

    with pytest.raises(
        CleaveError, match=r"role cleave_client does not exist.*CREATE ROLE cleave_client NOLOGIN"
    ):
        migrate(pristine_server.url("roles", user="plain", password="pw"))


@pytest.fixture
def reporters(empty_database: str, empty: StoreDriver, sql: Path) -> Iterator[str]:
    """A role of other people, who keep views of their own on the migrated database; the views are to be rebuilt."""
    migrate(empty_database, sql)
    role = f"reporters_{empty_database.rpartition('/')[2]}"
    empty.sql(f"CREATE ROLE {role}")
    (sql / "views" / "zz_more.sql").write_text("CREATE VIEW inspect.more AS SELECT 1 AS one;")
    yield role
    empty.sql(f"DROP OWNED BY {role} CASCADE")
    empty.sql(f"DROP ROLE {role}")


def _report(driver: StoreDriver) -> None:
    driver.sql("CREATE SCHEMA reports")
    driver.sql("CREATE VIEW reports.names AS SELECT topic FROM inspect.topics")
    driver.sql("CREATE VIEW reports.count AS SELECT count(*) FROM reports.names")
    driver.sql(
        "CREATE FUNCTION reports.first() RETURNS text BEGIN ATOMIC SELECT min(topic) FROM reports.names; END"
    )
    driver.sql("CREATE VIEW inspect.of_others AS SELECT 1 AS one")
    driver.sql("CREATE VIEW inspect.of_others_too AS SELECT count(*) FROM inspect.topics")


_DEPENDENTS = (
    "function reports.first()",
    "view inspect.of_others_too",
    "view reports.count",
    "view reports.names",
)


def test_views_of_others_stop_a_rebuild_that_would_drop_them(
    empty_database: str, empty: StoreDriver, sql: Path, reporters: str
) -> None:
    _report(empty)
    ledger = empty.sql("SELECT * FROM cleave.migration ORDER BY name")

    assert plan(empty_database, sql).dependents == _DEPENDENTS
    with pytest.raises(
        Conflict, match=r"other objects depend on them: .*view reports.count, view reports.names; drop"
    ):
        migrate(empty_database, sql)

    assert empty.sql("SELECT * FROM cleave.migration ORDER BY name") == ledger
    assert empty.sql("SELECT count FROM reports.count") == [(0,)]


def test_views_of_others_are_dropped_on_request_and_those_that_do_not_depend_on_ours_stay(
    empty_database: str, empty: StoreDriver, sql: Path, reporters: str
) -> None:
    _report(empty)

    assert migrate(empty_database, sql, drop_dependent_views=True) == ["views"]

    left = empty.sql("SELECT viewname FROM pg_views WHERE schemaname = 'reports' OR viewname ~ '^of_others'")
    assert left == [("of_others",)]
    assert plan(empty_database, sql).dependents == ()


def test_views_of_others_stop_nothing_where_no_view_is_rebuilt(
    empty_database: str, empty: StoreDriver
) -> None:
    migrate(empty_database)
    _report(empty)

    assert plan(empty_database).dependents == ()
    assert migrate(empty_database) == []


_RIGHTS = """
    SELECT has_table_privilege(:role, 'inspect.topics', 'SELECT WITH GRANT OPTION'),
           has_column_privilege(:role, 'inspect.operations', 'operation_id', 'SELECT'),
           has_table_privilege(:role, 'inspect.operations', 'SELECT'),
           has_function_privilege(:role, 'inspect.layout_at(text, bigint)', 'EXECUTE WITH GRANT OPTION')
"""


def test_rights_that_others_granted_on_views_survive_their_rebuild(
    empty_database: str, empty: StoreDriver, sql: Path, reporters: str
) -> None:
    empty.sql(f"GRANT SELECT ON inspect.topics TO {reporters} WITH GRANT OPTION")
    empty.sql(f"GRANT SELECT (operation_id) ON inspect.operations TO {reporters}")
    empty.sql(f"GRANT EXECUTE ON FUNCTION inspect.layout_at(text, bigint) TO {reporters} WITH GRANT OPTION")
    empty.sql(f"GRANT SELECT ON inspect.mirrors TO {reporters}")
    (sql / "views" / "inspect_mirrors.sql").unlink()

    assert [grant.statement for grant in plan(empty_database, sql).grants] == [
        f"GRANT EXECUTE ON FUNCTION inspect.layout_at(text, bigint) TO {reporters} WITH GRANT OPTION",
        f"GRANT SELECT (operation_id) ON inspect.operations TO {reporters}",
        f"GRANT SELECT ON inspect.mirrors TO {reporters}",
        f"GRANT SELECT ON inspect.topics TO {reporters} WITH GRANT OPTION",
    ]
    assert migrate(empty_database, sql) == ["views"]

    assert empty.sql(_RIGHTS, role=reporters) == [(True, True, False, True)]
    readers = "SELECT has_table_privilege('cleave_inspector', 'inspect.more', 'SELECT')"
    assert empty.sql(readers) == [(True,)]


def test_a_readers_login_is_enough_for_a_plan(
    postgres_server: PostgresServer, empty_database: str, empty: StoreDriver
) -> None:
    migrate(empty_database)
    empty.sql("UPDATE cleave.migration SET checksum = 'of other views' WHERE name = 'views'")
    user = f"reader_{empty_database.rpartition('/')[2]}"
    empty.sql(f"CREATE ROLE {user} LOGIN PASSWORD 'pw' IN ROLE cleave_inspector")
    try:
        planned = plan(postgres_server.url(empty_database.rpartition("/")[2], user=user, password="pw"))
    finally:
        empty.sql(f"DROP ROLE {user}")

    assert (planned.names, planned.defaults) == (["views"], ())


def test_a_plan_names_everything_that_a_run_does(pristine_server: PostgresServer) -> None:
    url = pristine_server.create_database("planned")
    planned = plan(url)
    assert planned.roles == (
        "cleave_owner",
        "cleave_controller",
        "cleave_spark_loader",
        "cleave_inspector",
        "cleave_client",
    )
    assert planned.names == [BASELINE, "views"]
    assert planned.roles_of_owner == ("pg_read_all_stats", "pg_signal_backend")
    assert {"advisory locks", "temporary tables"} <= set(planned.public_rights)
    assert planned.defaults == tuple(sorted(AutoScalePolicy().to_document()))

    migrate(url)
    admin = StoreDriver(url)
    admin.sql("UPDATE cleave.policy_default SET value = '1' WHERE parameter = 'max_segments'")
    admin.sql("INSERT INTO cleave.policy_default VALUES ('parameter_of_old', '1')")
    admin.store.dispose()

    left = plan(url)
    assert (left.roles, left.names, left.grants) == ((), [], ())
    assert (left.public_rights, left.roles_of_owner) == ((), ())
    assert left.defaults == ("max_segments", "parameter_of_old")
