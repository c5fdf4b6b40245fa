"""Configuration of brokers and bookies on one small machine: properties files and their ports.

All these brokers share these values: one copy of each entry, and no wait for the disk. A killed process loses nothing
(the kernel has the pages); a power failure would lose data.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import psutil

from controller.devstack.failure import DevstackFailed
from controller.devstack.ports import LOOPBACK, free_port, is_listening, release_port
from controller.devstack.private_file import write_private

BROKER: Final[Mapping[str, str]] = {
    "bindAddress": LOOPBACK,
    "advertisedAddress": LOOPBACK,
    "brokerServicePortTls": "",
    "webServicePortTls": "",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    # Otherwise a topic without clients is deleted after a minute, and a segment is a topic.
    "brokerDeleteInactiveTopicsEnabled": "false",
    "brokerShutdownTimeoutMs": "10000",
    "transactionCoordinatorEnabled": "false",
    "topicLevelPoliciesEnabled": "true",
    # Enough for two cores; the defaults are per core or 32 and more.
    "numIOThreads": "4",
    "numHttpServerThreads": "8",
    "numOrderedExecutorThreads": "2",
}
BOOKIE: Final[Mapping[str, str]] = {
    "allowLoopback": "true",  # otherwise a bookie refuses the address 127.0.0.1
    "allowEphemeralPorts": "true",  # otherwise standalone chooses a port itself, whatever is configured
    "journalSyncData": "false",
    "journalWriteData": "true",
    "journalPreAllocSizeMB": "4",
    "dbStorage_writeCacheMaxSizeMb": "64",
    "dbStorage_readAheadCacheMaxSizeMb": "32",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
}


def loopback_interface() -> str:
    """Return the name of the interface with 127.0.0.1 (`lo`, `lo0`); without a name a bookie listens on all interfaces. Raises
    DevstackFailed if no interface has 127.0.0.1.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == LOOPBACK for address in addresses):
            return name
    raise DevstackFailed(f"no network interface has {LOOPBACK}; enable the loopback interface")


def write_properties(path: Path, *layers: Mapping[str, str]) -> Path:
    """Write a Java properties file of all `layers`, of which later ones win; readable by this user only. Return the
    path.
    """
    merged = {key: value for layer in layers for key, value in layer.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(
        path, "".join(f"{key}={value}\n" for key, value in merged.items())
    )  # the file may contain a token
    return path


def kept_ports(directory: Path, names: Iterable[str]) -> dict[str, int]:
    """Return a free port for each name, by name. The first call stores the ports in `ports.json` of the directory; later calls return the
    stored ports, whatever `names` they give.

    The data refers to its server by address, and clients find a restarted broker at its old address. Raises DevstackFailed if another
    process listens on one of the stored ports.
    """
    file = directory / "ports.json"
    if file.exists():
        ports_in_file: dict[str, int] = json.loads(file.read_text())
        for name, port in ports_in_file.items():
            if is_listening(port):
                raise DevstackFailed(
                    f"another process uses port {port}, the port of {name} in the data of {directory}; "
                    f"end that process, or remove {directory} to start without data"
                )
        return ports_in_file
    directory.mkdir(parents=True, exist_ok=True)
    ports = {name: free_port() for name in names}
    file.write_text(json.dumps(ports))
    return ports


def delete_data(directory: Path, ports: Mapping[str, int]) -> None:
    """Delete the data and the stored ports of servers that have ended, and release the ports. The logs stay."""
    for port in ports.values():
        release_port(port)
    (directory / "ports.json").unlink(missing_ok=True)
    shutil.rmtree(directory / "data", ignore_errors=True)
