"""A private PostgreSQL primary with one standby on loopback, and the failures of such a pair.

The servers are the wheel's, as every other server of the tests. Operations: synchronous or asynchronous replication, a cut of the
replication link, a kill or a freeze of the primary, a promotion, a restore of an older copy of the data, a dump and its restore, and a
standby whose clock is behind. After a promotion or a restore, `add_standby` completes the pair again, so that one pair serves many tests.

Clients reach the present primary in one of two ways (`Address`): by `PROXY`, one fixed port as of a cloud proxy or a pooler, or by
`HOSTS`, libpq's list of both servers with `target_session_attrs=read-write`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import psycopg2
from sqlalchemy import make_url

from controller.devstack.accounts import server_account
from controller.devstack.ports import LOOPBACK, free_port, release_port
from controller.devstack.postgres import SUPERUSER, EmbeddedPostgres
from controller.devstack.postgres_home import room_in, wheel_binaries
from controller.devstack.process import run_checked
from tests.support.primary_relay import PrimaryRelay
from tests.support.quick_logins import make_logins_quick
from tests.support.waiting import wait_until

SETTINGS = {
    "fsync": "off",
    "shared_buffers": "64MB",
    "wal_keep_size": "256MB",
    "dynamic_shared_memory_type": "mmap",  # in the data directory, so that a killed server leaves nothing elsewhere
}
"""Commits survive a kill of the processes, and not a power cut. `full_page_writes` stays on: base backups need it."""
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
"""Of Debian's package faketime: `apt-get install faketime`."""

_MEMORY_LINE = 6
"""Of postmaster.pid: key and id of the segment."""


class Address(StrEnum):
    """Way by which clients reach the present primary."""

    PROXY = "proxy"
    """One fixed port."""
    HOSTS = "hosts"
    """`postgresql://user:password@host:port,host:port/database?target_session_attrs=read-write`."""


class ReplicatedPostgres:
    """Two servers and the relay in front of them, from `start` to `destroy`."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._made = directory, 0
        self._ports = (free_port(), free_port())
        self.relay = PrimaryRelay()
        self._homes: dict[EmbeddedPostgres, Path] = {}
        self.primary = self._server(self._new_home(), self._ports[0])
        self.standby: EmbeddedPostgres | None = None
        self._frozen: EmbeddedPostgres | None = None
        self._leash: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()

    def start(self) -> None:
        """Start the primary. There is no standby yet."""
        self.primary.start()
        make_logins_quick(self.primary)
        self.relay.point_to(self.primary.port)

    def destroy(self) -> None:
        """End every process and remove the data."""
        self.relay.close()
        self.kill_frozen()
        for server in filter(None, (self.primary, self.standby)):
            if server in self._homes:
                self._discard(server)
        shutil.rmtree(self._directory, ignore_errors=True)
        for port in self._ports:
            release_port(port)

    # Databases.

    def url(self, database: str, address: Address = Address.PROXY) -> str:
        """Return the URL of `database` as the superuser, which always leads to the present primary."""
        direct = make_url(self.primary_url(database))
        if address is Address.PROXY:
            return direct.set(port=self.relay.port).render_as_string(hide_password=False)
        hosts = ",".join(f"{LOOPBACK}:{port}" for port in self._ports)
        return (
            f"postgresql://{direct.username}:{direct.password}@{hosts}/{database}"
            "?target_session_attrs=read-write"
        )

    def primary_url(self, database: str) -> str:
        """Return the URL of `database` on the present primary, for connections that must end with it."""
        return (
            make_url(self.primary.url(database))
            .set(drivername="postgresql")
            .render_as_string(hide_password=False)
        )

    def dump(self, database: str) -> Path:
        """Write a dump of `database` in pg_dump's custom format, and return its path."""
        path = self._directory / f"{database}.dump"
        self._run("pg_dump", "--format=custom", "--file", path, "--dbname", database)
        return path

    def restore_dump(self, database: str, dump: Path) -> None:
        """Replace `database` by a new database of the same name on the same server with the contents of the dump."""
        restored = f"{database}_restored"
        self.primary.create_database(restored)
        self._run("pg_restore", "--exit-on-error", "--dbname", restored, dump)
        self.primary.drop_database(database)
        execute(self.primary, f"ALTER DATABASE {restored} RENAME TO {database}")

    # Replication.

    def add_standby(self, *, synchronous: bool, clock_behind_seconds: int = 0) -> None:
        """Copy the primary into a standby that follows it, and wait until it does. `clock_behind_seconds` needs libfaketime; negative:
        ahead.
        """
        home = self.back_up()
        data = _data(home)
        address = f"host={LOOPBACK} port={self.primary.port} user={SUPERUSER} password={self._password}"
        self._write(data / "standby.signal", "")
        self._write(data / "postgresql.auto.conf", f"primary_conninfo = '{address}'\n")
        [port] = {*self._ports} - {self.primary.port}
        self.standby = self._server(home, port, clock_behind_seconds)
        self.standby.start()
        wait_until(lambda: self._is_streaming("streaming"), message="the standby follows the primary")
        if synchronous:
            self.set_synchronous("*")
            wait_until(lambda: self._is_streaming("streaming", "sync"), message="replication is synchronous")

    def set_synchronous(self, standbys: str) -> None:
        """Let commits on the primary wait for these standbys: `*` for any, an empty text for none."""
        execute(self.primary, f"ALTER SYSTEM SET synchronous_standby_names = '{standbys}'")
        execute(self.primary, "SELECT pg_reload_conf()")

    def wait_replayed(self) -> None:
        """Wait until the standby has replayed all commits of the primary from before the call."""
        lsn = value(self.primary, "SELECT pg_current_wal_lsn()")
        standby = self._demand_standby()
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn"
        wait_until(lambda: value(standby, replayed), message=f"the standby replays {lsn}")

    def cut_replication(self) -> None:
        """Stop the replication after the standby has replayed all earlier commits."""
        self.wait_replayed()
        standby = self._demand_standby()
        execute(standby, "ALTER SYSTEM SET primary_conninfo = ''")
        execute(standby, "SELECT pg_reload_conf()")
        wait_until(
            lambda: not value(standby, "SELECT count(*) FROM pg_stat_wal_receiver"),
            message="the standby lets go of the primary",
        )

    # Outages.

    def kill_primary(self) -> None:
        """Kill every process of the primary at once. There is no primary until `promote` or `restore`."""
        self.relay.point_to(None)
        self.primary.kill()

    def freeze_primary(self) -> None:
        """Stop every process of the primary without closing a connection, as a hung host does."""
        family = _family(self.primary)
        self._leash = _leash(family)
        for process in family:
            process.suspend()
        self._frozen = self.primary

    def kill_frozen(self) -> None:
        """Kill the processes that `freeze_primary` stopped, if any."""
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            self._discard(frozen)
            self._leash.communicate(b"done\n")

    def thaw(self) -> None:
        """Resume a frozen primary, while the promoted server, if any, also runs."""
        if self._frozen is not None:
            for process in reversed(_family(self._frozen)):
                process.resume()

    def promote(self) -> None:
        """Make the standby the primary, and lead the relay to it."""
        standby = self._demand_standby()
        value(standby, "SELECT pg_promote(true, 60)")
        if self._frozen is not self.primary:
            self._discard(self.primary)
        self.primary, self.standby = standby, None
        self.relay.point_to(self.primary.port)

    def back_up(self) -> Path:
        """Return a base backup of the present primary: the directory of a server that `restore` can start."""
        home = self._new_home()
        data = _data(home)
        self._run("pg_basebackup", "--pgdata", data, "--checkpoint=fast", "--no-sync", "--wal-method=stream")
        self._write(data / "postgresql.auto.conf", "")
        _give(data)
        shutil.copy2(self._homes[self.primary] / "password", home / "password")
        return home

    def restore(
        self,
        backup: Path,
        *,
        new_timeline: bool,
        before_service: Callable[[EmbeddedPostgres], object] = lambda _server: None,
    ) -> None:
        """Replace the primary by a server from `backup` at the same port; later commits are gone, and there is no standby.

        `new_timeline`: recover as from an archive, which begins a timeline; a plain copy continues its own. Neither changes the system
        identifier. `before_service` acts on the restored server before the relay leads to it.
        """
        self.relay.point_to(None)
        port = self.primary.port
        for server in filter(None, (self.standby, self.primary)):
            self._discard(server)
        self.standby = None
        if new_timeline:
            self._write(_data(backup) / "postgresql.auto.conf", "restore_command = 'false'\n")
            self._write(_data(backup) / "recovery.signal", "")
        self.primary = self._server(backup, port)
        self.primary.start()
        wait_until(lambda: not value(self.primary, "SELECT pg_is_in_recovery()"), message="recovery ends")
        before_service(self.primary)
        self.relay.point_to(port)

    # Inside.

    @property
    def _password(self) -> str:
        return str(make_url(self.primary.url("postgres")).password)

    def _demand_standby(self) -> EmbeddedPostgres:
        assert self.standby is not None, "there is no standby; call add_standby first"
        return self.standby

    def _is_streaming(self, state: str, sync_state: str = "%") -> bool:
        statement = "SELECT count(*) FROM pg_stat_replication WHERE state = '{}' AND sync_state LIKE '{}'"
        return bool(value(self.primary, statement.format(state, sync_state)))

    def _new_home(self) -> Path:
        self._made += 1
        home = self._directory / f"server-{self._made}"
        home.mkdir(parents=True)
        return home

    def _server(self, home: Path, port: int, clock_behind_seconds: int = 0) -> EmbeddedPostgres:
        binaries = _slow_clock(home, clock_behind_seconds) if clock_behind_seconds else None
        server = EmbeddedPostgres(home, port=port, settings=SETTINGS, binaries=binaries)
        self._homes[server] = home
        return server

    def _discard(self, server: EmbeddedPostgres) -> None:
        """End the server and delete its data. Its port stays claimed for the successor."""
        home = self._homes.pop(server)
        server.kill()
        _free_memory(_data(home))
        shutil.rmtree(home, ignore_errors=True)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        _give(path)

    def _run(self, program: str, *arguments: str | Path) -> None:
        """Run a client program of the wheel on the primary."""
        where = ("--host", LOOPBACK, "--port", str(self.primary.port), "--username", SUPERUSER)
        env = {**os.environ, "PGPASSWORD": self._password}
        run_checked([wheel_binaries() / program, *where, *arguments], cwd=self._directory, env=env)


def value(server: EmbeddedPostgres, statement: str, database: str = "postgres") -> Any:
    """Return the first value of the statement's result, from a connection to this very server; None without a row."""
    with _connected(server, database) as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
        return None if row is None else row[0]


def execute(server: EmbeddedPostgres, statement: str, database: str = "postgres") -> None:
    """Run one statement outside a transaction, by one connection to this very server."""
    with _connected(server, database) as cursor:
        cursor.execute(statement)


@contextmanager
def _connected(server: EmbeddedPostgres, database: str) -> Iterator[psycopg2.extensions.cursor]:
    url = make_url(server.url(database)).set(drivername="postgresql")
    with closing(
        psycopg2.connect(url.render_as_string(hide_password=False), connect_timeout=10)
    ) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            yield cursor


def _data(home: Path) -> Path:
    return room_in(home, server_account()) / "data"


def _free_memory(data: Path) -> None:
    """Free the System V segment that a killed server leaves: a machine has a few thousand of them at most."""
    lines = (data / "postmaster.pid").read_text().splitlines() if (data / "postmaster.pid").exists() else []
    if len(lines) > _MEMORY_LINE:
        subprocess.run(["ipcrm", "-m", lines[_MEMORY_LINE].split()[1]], check=False, capture_output=True)


def _give(path: Path) -> None:
    """Give the path, with all its contents, to the account that runs the servers."""
    account = server_account()
    if account is not None:
        for entry in (path, *path.rglob("*")):
            os.chown(entry, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _family(server: EmbeddedPostgres) -> list[psutil.Process]:
    """Return the postmaster, which would start other processes, before its children."""
    head = psutil.Process(server.pid)
    with suppress(psutil.NoSuchProcess):
        return [head, *head.children(recursive=True)]
    return []


def _leash(family: list[psutil.Process]) -> subprocess.Popen[bytes]:
    """Start a process that kills these processes if this one dies without having killed them: a stopped process does not notice the death
    of its parent.
    """
    return subprocess.Popen(
        [
            "/bin/sh",
            "-c",
            'read -r word || kill -s KILL "$@"',
            "leash",
            *(str(process.pid) for process in family),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _slow_clock(home: Path, behind_seconds: int) -> Path:
    """Write a `postgres` whose clock is `behind_seconds` behind the machine's, or ahead if negative, and return its directory.

    In a signal handler that interrupts a wait, libfaketime shows the machine's clock. So a server that is behind ends an idle transaction
    at its first timer, within seconds, and a server that is ahead ends it late.
    """
    assert FAKETIME.exists(), "install Debian's package faketime first"
    room = home / "slow-clock"
    room.mkdir()
    room.chmod(0o755)
    program = room / "postgres"
    real = wheel_binaries() / "postgres"
    program.write_text(
        f"#!/bin/sh\nexport LD_PRELOAD={FAKETIME} FAKETIME={-behind_seconds:+d}s FAKETIME_DONT_FAKE_MONOTONIC=1\n"
        f'exec {real} "$@"\n'
    )
    program.chmod(0o755)
    return room
