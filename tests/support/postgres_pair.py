"""A primary and its standby on loopback: the primary can be frozen, the standby promoted.

The standby is a copy of the primary that follows it by asynchronous streaming.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import psycopg2

from controller.devstack.accounts import server_account
from controller.devstack.ports import LOOPBACK
from controller.devstack.postgres import SUPERUSER, EmbeddedPostgres
from controller.devstack.postgres_home import room_in, wheel_binaries
from controller.devstack.process import run_checked
from controller.postgres.address import DatabaseAddress
from tests.support.quick_logins import make_logins_quick
from tests.support.waiting import wait_until

SETTINGS = {"fsync": "off", "shared_buffers": "32MB"}


class PostgresPair:
    """Two servers, from entering the context to leaving it."""

    def __init__(self, directory: Path) -> None:
        self._homes = directory / "primary", directory / "standby"
        self.primary, self.standby = (EmbeddedPostgres(home, settings=SETTINGS) for home in self._homes)
        self._frozen: list[psutil.Process] = []

    def __enter__(self) -> Self:
        self.primary.start()
        make_logins_quick(self.primary)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thaw()
        for server in (self.standby, self.primary):
            server.crash()
            server.destroy()

    def url(self, database: str = "postgres") -> str:
        """URL of `database` on whichever server accepts writes."""
        login = DatabaseAddress.of(self.primary.url(database)).parameters
        hosts = ",".join(f"{LOOPBACK}:{server.port}" for server in (self.primary, self.standby))
        return (
            f"postgresql://{login['user']}:{login['password']}@{hosts}/{database}"
            "?target_session_attrs=read-write"
        )

    def follow(self) -> None:
        """Make the standby; it has what the primary has committed, and follows."""
        home, account = self._homes[1], server_account()
        home.mkdir(parents=True)
        data = room_in(home, account) / "data"
        password = DatabaseAddress.of(self.primary.url("postgres")).parameters["password"]
        run_checked(
            [
                *(wheel_binaries() / "pg_basebackup", "--pgdata", data, "--checkpoint=fast", "--no-sync"),
                *("--write-recovery-conf", "--host", LOOPBACK, "--port", str(self.primary.port)),
                *("--username", SUPERUSER),
            ],
            cwd=home,
            env={**os.environ, "PGPASSWORD": password},
        )
        shutil.copy2(self._homes[0] / "password", home / "password")
        if account is not None:
            for path in (data, *data.rglob("*")):
                os.chown(path, account.user_id, account.group_id, follow_symlinks=False)
        self.standby.start()

    def freeze(self) -> None:
        """Stop every process of the primary: its kernel still accepts and acknowledges, and no process answers."""
        replayed = (
            f"SELECT pg_last_wal_replay_lsn() >= '{value(self.primary, 'SELECT pg_current_wal_lsn()')}'"
        )
        wait_until(lambda: value(self.standby, replayed), message="the standby has all")
        head = psutil.Process(self.primary.pid)
        for process in (head, *head.children(recursive=True)):
            process.suspend()
            self._frozen.append(process)

    def promote(self) -> None:
        """Make the standby accept writes."""
        value(self.standby, "SELECT pg_promote(true, 60)")

    def thaw(self) -> None:
        """Let the processes of the primary go on."""
        while self._frozen:
            with suppress(psutil.NoSuchProcess):
                self._frozen.pop().resume()


def value(server: EmbeddedPostgres, statement: str, database: str = "postgres") -> Any:
    """The first value that the statement answers on this very server."""
    with closing(psycopg2.connect(DatabaseAddress.of(server.url(database)).uri)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone()
    return None if row is None else row[0]
