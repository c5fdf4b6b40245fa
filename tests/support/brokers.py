"""Real Pulsar brokers shared by all test processes of one run: the first user starts them, the last one stops them.

A separate *keeper* process holds the server, since a server dies with its parent and any worker may be the first to finish. Users share a
file lock, which the kernel releases when they end in any way; the keeper waits for the exclusive lock. Tests must not kill these servers:
a test that kills one starts its own.

`python -m tests.support.brokers KIND ROOM` is the keeper; only this module starts it.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pulsar

from controller.devstack.pulsar.cluster import CALM, PulsarCluster
from controller.devstack.pulsar.jars import PULSAR_4, PULSAR_5, MavenMissing, file_lock, pulsar_jars
from controller.devstack.pulsar.java_server import QUICK, START_TIMEOUT_SECONDS
from controller.devstack.pulsar.standalone import PulsarStandalone
from tests.support.missing import skip_without
from tests.support.waiting import wait_until

STANDALONE, STANDALONE_5, CLUSTER = "standalone", "standalone-5", "cluster"
VERSION_4 = os.environ.get("CLEAVE_TEST_PULSAR_VERSION", PULSAR_4)
"""Version of the brokers before 5.0."""
_VERSION_OF: Mapping[str, str] = {STANDALONE: VERSION_4, STANDALONE_5: PULSAR_5, CLUSTER: VERSION_4}
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class SharedBroker:
    """Addresses of a running server; `brokers` maps a broker id (host:port) to its own admin URL.

    `log` is the path of the log of a server with one broker, else empty.
    """

    admin_url: str
    service_url: str
    brokers: Mapping[str, str]
    log: str = ""


@contextmanager
def shared_broker(kind: str, room: Path) -> Iterator[SharedBroker]:
    """Yield the run's server of this `kind`, and start it if this is the first user; `room` is one directory for all processes of the
    run. The end of the block ends this use.
    """
    demand_jars(_VERSION_OF[kind])
    home = room / f"pulsar-{kind}"
    home.mkdir(parents=True, exist_ok=True)
    users = os.open(home / "users.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        with file_lock(home / "start.lock"):
            fcntl.flock(users, fcntl.LOCK_SH)  # waits for a keeper that is about to end
            if not (home / "address.json").exists():
                _launch_keeper(kind, home)
        yield SharedBroker(**json.loads((home / "address.json").read_text()))
    finally:
        os.close(users)


def demand_jars(version: str) -> Path:
    """Return the jars of `version`. Without Maven the test is skipped, or failed if CI=true."""
    try:
        return pulsar_jars(version)
    except MavenMissing as missing:
        skip_without(str(missing))


@contextmanager
def pulsar_client(
    url: str, token: str | None = None, *, timeout_seconds: int = 30
) -> Iterator[pulsar.Client]:
    """Yield a client that logs errors only, closed at the end; `timeout_seconds` is for each of its operations."""
    client = pulsar.Client(
        url,
        authentication=pulsar.AuthenticationToken(token) if token else None,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        operation_timeout_seconds=timeout_seconds,
    )
    try:
        yield client
    finally:
        client.close()


def _launch_keeper(kind: str, home: Path) -> None:
    """Start the keeper and wait for its address. Raises RuntimeError with the last line of its log if the keeper ends instead."""
    with (home / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.support.brokers", kind, str(home)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=_REPOSITORY,
            start_new_session=True,  # Ctrl-C is for us; it sees that we are gone
        )
    address = home / "address.json"
    wait_until(
        lambda: address.exists() or keeper.poll() is not None,
        timeout_seconds=2 * START_TIMEOUT_SECONDS,
        message=f"the {kind} broker is up",
    )
    if not address.exists():
        raise RuntimeError((home / "keeper.log").read_text().strip().splitlines()[-1])


def _make(kind: str, directory: Path) -> PulsarStandalone | PulsarCluster:
    if kind == CLUSTER:
        return PulsarCluster(
            directory, VERSION_4, jvm=QUICK, properties=CALM, hosts=("127.0.0.1", "localhost")
        )
    return PulsarStandalone(directory, _VERSION_OF[kind], jvm=QUICK)


def _address(server: PulsarStandalone | PulsarCluster) -> SharedBroker:
    if isinstance(server, PulsarCluster):
        brokers = {broker.broker_id: broker.admin_url for broker in server.brokers}
    else:
        brokers = {server.admin_url.removeprefix("http://"): server.admin_url}
    log = "" if isinstance(server, PulsarCluster) else str(server.log)
    return SharedBroker(server.admin_url, server.service_url, brokers, log)


def _when_nobody_is_left(home: Path, act: Callable[[], None]) -> threading.Thread:
    """Start a thread that calls `act` once every user has ended, and lets new users wait from then on."""

    def wait() -> None:
        fcntl.flock(os.open(home / "users.lock", os.O_RDWR), fcntl.LOCK_EX)
        (home / "address.json").unlink(missing_ok=True)
        act()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    return waiting


def keep(kind: str, home: Path) -> None:
    """Start the server, write its address, and serve until the last user has ended. Then end the server and remove its data; logs stay."""
    served = threading.Event()

    def give_up() -> None:
        if not served.is_set():
            os._exit(1)  # nobody waits for the start any more; the server's leash ends it

    last = _when_nobody_is_left(home, give_up)
    server = _make(kind, home)
    try:
        server.start()
        draft = home / "address.new"
        draft.write_text(json.dumps(asdict(_address(server))))
        served.set()
        draft.replace(home / "address.json")
        last.join()
    finally:
        server.destroy()


if __name__ == "__main__":
    try:
        keep(sys.argv[1], Path(sys.argv[2]))
    except Exception as failure:  # noqa: BLE001 - its line is what the waiting test shows
        sys.exit(f"{type(failure).__name__}: {failure}")
