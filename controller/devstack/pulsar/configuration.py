"""Configuration of brokers and bookies on one small machine: properties files and the ports in them.

The values that all these brokers share: one copy of each entry, no wait for the disk. A killed process loses nothing
(the kernel has the pages); a power cut would lose data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import psutil

from controller.devstack.failure import DevstackFailed
from controller.devstack.ports import LOOPBACK, free_port, is_listening
from controller.devstack.private_file import write_private

BROKER: Final[Mapping[str, str]] = {
    "bindAddress": LOOPBACK,
    "advertisedAddress": LOOPBACK,
    "brokerServicePortTls": "",
    "webServicePortTls": "",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    # Otherwise a topic that nobody uses for a minute is deleted, and a segment is a topic.
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
    "allowLoopback": "true",  # otherwise a bookie refuses to be known as 127.0.0.1
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
    """Name of the interface that has 127.0.0.1 (`lo`, `lo0`); a bookie listens on all without one."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == LOOPBACK for address in addresses):
            return name
    raise DevstackFailed(f"no network interface has {LOOPBACK}: bring the loopback interface up")


def write_properties(path: Path, *layers: Mapping[str, str]) -> Path:
    """A Java properties file of all `layers`, later ones win; readable by this user alone."""
    merged = {key: value for layer in layers for key, value in layer.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, "".join(f"{key}={value}\n" for key, value in merged.items()))  # a token may be in it
    return path


def kept_ports(directory: Path, names: Iterable[str]) -> dict[str, int]:
    """A free port for each name, the same ones whenever `directory` is used again.

    The data knows its server by address, and clients find a restarted broker where it was. Raises DevstackFailed when
    somebody else listens on one of them now.
    """
    file = directory / "ports.json"
    if file.exists():
        kept: dict[str, int] = json.loads(file.read_text())
        for name, port in kept.items():
            if is_listening(port):
                raise DevstackFailed(
                    f"port {port}, which the data in {directory} knows its {name} by, is taken: "
                    f"end what listens there, or remove {directory} to start afresh"
                )
        return kept
    directory.mkdir(parents=True, exist_ok=True)
    ports = {name: free_port() for name in names}
    file.write_text(json.dumps(ports))
    return ports
