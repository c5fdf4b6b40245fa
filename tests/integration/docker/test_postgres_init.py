"""docker/postgres-init.sh on a real server: the logins that docker-compose.yml uses can do their work, and no more."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from controller.devstack.postgres import FORGETFUL, EmbeddedPostgres
from controller.devstack.postgres_home import wheel_binaries
from controller.domain.errors import StoreUnavailable, Terminal
from controller.settings import PROJECT_ROOT
from controller.store.postgres import public_rights
from controller.store.postgres.engine import Store
from controller.store.postgres.migrations import migrate
from tests.support.scratch import scratch

# What a password may hold that SQL or a shell could trip over.
PASSWORDS = {
    f"{name}_PASSWORD": f"it's-$HOME-{name}\\"
    for name in (
        "AIRFLOW_DB",
        "CLEAVE_OWNER",
        "CLEAVE_APP",
        "CLEAVE_LOAD",
        "CLEAVE_READER",
        "CLEAVE_APPLICATION",
    )
}
Connect = Callable[..., Store]


def run_script(server: EmbeddedPostgres, **changes: str) -> subprocess.CompletedProcess[str]:
    admin = make_url(server.url("postgres"))
    env = {
        "PATH": f"{wheel_binaries()}{os.pathsep}{os.environ['PATH']}",
        "PGHOST": str(admin.host),
        "PGPORT": str(admin.port),
        "PGPASSWORD": str(admin.password),
        **PASSWORDS,
        **changes,
    }
    script = PROJECT_ROOT / "docker" / "postgres-init.sh"
    return subprocess.run([script], env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server of this module's own (roles belong to the server), set up by the script and migrated."""
    server = EmbeddedPostgres(scratch(tmp_path_factory, "compose"), settings=FORGETFUL)
    try:
        server.start()
        done = run_script(server)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        migrate(server.url("cleave", user="cleave_migrator", password=PASSWORDS["CLEAVE_OWNER_PASSWORD"]))
        yield server
    finally:
        server.destroy()


@pytest.fixture
def connect(server: EmbeddedPostgres) -> Iterator[Connect]:
    """A store on a database as one of the logins."""
    stores: list[Store] = []

    def connect(login: str, password: str, database: str = "cleave") -> Store:
        stores.append(Store(server.url(database, user=login, password=PASSWORDS[f"{password}_PASSWORD"])))
        return stores[-1]

    yield connect
    for store in stores:
        store.dispose()


@pytest.mark.parametrize(
    ("login", "password", "role"),
    [
        ("cleave_app", "CLEAVE_APP", "cleave_controller"),
        ("cleave_load", "CLEAVE_LOAD", "cleave_spark_loader"),
        ("cleave_reader", "CLEAVE_READER", "cleave_inspector"),
        ("cleave_application", "CLEAVE_APPLICATION", "cleave_client"),
        ("cleave_migrator", "CLEAVE_OWNER", "cleave_owner"),
    ],
)
def test_each_login_is_in_its_role_only(connect: Connect, login: str, password: str, role: str) -> None:
    roles = text(
        "SELECT rolname FROM pg_roles WHERE rolname LIKE 'cleave%' AND rolname <> current_user "
        "AND pg_has_role(current_user, oid, 'member')"
    )
    with connect(login, password).transaction() as tx:
        assert tx.execute(roles).scalars().all() == [role]


def test_the_reader_reads_the_views_and_writes_nothing(connect: Connect) -> None:
    store = connect("cleave_reader", "CLEAVE_READER")
    with store.transaction() as tx:
        assert tx.execute(text("SELECT count(*) FROM inspect.topics")).scalar_one() == 0

    with pytest.raises(Terminal, match="may not do this"), store.transaction() as tx:
        tx.execute(text("DELETE FROM cleave.topic"))


def test_an_application_calls_the_functions_of_the_logs_and_reads_no_table(connect: Connect) -> None:
    store = connect("cleave_application", "CLEAVE_APPLICATION")
    with pytest.raises(Terminal, match="may not do this"), store.transaction() as tx:
        tx.execute(text("SELECT FROM embedded.message"))
    with pytest.raises(Terminal, match="may not do this"), store.transaction() as tx:
        tx.execute(text("SELECT FROM cleave.topic"))

    with store.transaction() as tx:
        looked = text("SELECT FROM embedded.owners(:log_id, :subscription, :first, :last)")
        parameters = {"log_id": 1, "subscription": "nobody's", "first": 0, "last": 65_535}
        assert tx.execute(looked, parameters).all() == []


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_try_advisory_xact_lock_shared(1, 2)",
        "SELECT lo_creat(-1)",
        "SELECT lo_from_bytea(0, 'x')",
        "CREATE TEMPORARY TABLE mine ()",
    ],
)
@pytest.mark.parametrize("login", ["cleave_application", "cleave_reader"])
def test_an_application_or_a_reader_takes_nothing_that_all_share(
    connect: Connect, login: str, statement: str
) -> None:
    store = connect(login, login.upper())
    with pytest.raises(Terminal, match="may not do this"), store.transaction() as tx:
        tx.execute(text(statement))


@pytest.mark.parametrize("database", ["postgres", "template1", "airflow"])
def test_an_application_connects_to_cleaves_database_only(connect: Connect, database: str) -> None:
    store = connect("cleave_application", "CLEAVE_APPLICATION", database)
    with pytest.raises((StoreUnavailable, Terminal), match="permission denied"), store.transaction():
        pass


def test_applications_and_readers_have_limits_and_the_owner_can_end_their_transactions(
    connect: Connect,
) -> None:
    limits = text("""
        SELECT rolname, rolconnlimit, array_length(rolconfig, 1) FROM pg_roles
         WHERE rolname IN ('cleave_reader', 'cleave_application', 'cleave_load') ORDER BY 1
    """)
    with connect("cleave_app", "CLEAVE_APP").transaction() as tx:
        assert tx.execute(limits).all() == [
            ("cleave_application", 40, 3),
            ("cleave_load", 10, None),
            ("cleave_reader", 10, 3),
        ]
        assert public_rights.held_by_public(tx) == []
        assert public_rights.missing_owner_roles(tx) == []
        tx.execute(text("CREATE TEMPORARY TABLE ours ()"))


def test_airflow_owns_its_database_and_never_sees_cleaves(connect: Connect) -> None:
    with connect("airflow", "AIRFLOW_DB", "airflow").transaction() as tx:
        tx.execute(text("CREATE TABLE public.anything ()"))

    for store in (connect("airflow", "AIRFLOW_DB"), connect("cleave_app", "CLEAVE_APP", "airflow")):
        with pytest.raises((StoreUnavailable, Terminal), match="permission denied"), store.transaction():
            pass


def test_a_password_that_is_missing_stops_it_before_anything_is_made(server: EmbeddedPostgres) -> None:
    done = run_script(server, CLEAVE_APP_PASSWORD="")

    assert done.returncode != 0
    assert "CLEAVE_APP_PASSWORD" in done.stderr


def test_the_script_can_be_run() -> None:
    assert os.access(PROJECT_ROOT / Path("docker/postgres-init.sh"), os.X_OK)
