"""PgBouncer in front of a server of the tests, in each usual pooling mode."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controller.devstack.accounts import server_account
from controller.devstack.ports import LOOPBACK, free_port, release_port
from controller.devstack.process import ChildProcess
from controller.postgres.address import DatabaseAddress
from tests.support.missing import skip_without

_ALSO = ("/usr/sbin", "/sbin")
"""Directories of Debian's servers, which PATH of an ordinary user may lack."""


@contextmanager
def pgbouncer(database: str, directory: Path, mode: str, **settings: object) -> Iterator[str]:
    """Run a PgBouncer until the end of the block, and yield the URL of the database through it. It logs in at the server as the user of
    `database`. Skips the test without PgBouncer.
    """
    program = shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", ""), *_ALSO)))
    if program is None:
        skip_without("pgbouncer is missing: on Debian, install the package pgbouncer")
    address, port = DatabaseAddress.of(database), free_port()
    configuration = directory / "pgbouncer.ini"
    configuration.write_text(_configuration(address, port, {"pool_mode": mode, **settings}))
    child = ChildProcess([program, str(configuration)], log=directory / "pgbouncer.log", cwd=directory)
    child.start()
    try:
        child.wait_ready(lambda: _accepts(port), timeout_seconds=30)
        user, name = address.parameters["user"], address.parameters["dbname"]
        yield f"postgresql://{user}@{LOOPBACK}:{port}/{name}"
    finally:
        child.stop()
        release_port(port)


def _configuration(address: DatabaseAddress, port: int, settings: dict[str, object]) -> str:
    [(host, server_port)] = address.servers
    login = " ".join(f"{name}='{address.parameters[name]}'" for name in ("user", "password"))
    account = server_account()
    every = {
        "listen_addr": LOOPBACK,
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        **({"user": account.pw_name} if account else {}),  # which it becomes: it does not run as root
        **settings,
    }
    lines = [f"{name} = {value}" for name, value in every.items()]
    return "\n".join(
        ["[databases]", f"* = host={host} port={server_port} {login}", "[pgbouncer]", *lines, ""]
    )


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
