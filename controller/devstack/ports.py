"""Free TCP ports on loopback, for several processes at once.

A port that was free may be given to another process before the server binds it. So the numbers are below the range
that the kernel uses for outgoing connections, and a locked file claims each of them until this process ends: two test
workers never get the same port.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from controller.domain.errors import Terminal

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 20_000, 32_000  # Linux assigns 32768 and up, macOS 49152 and up
_claims: dict[int, int] = {}  # port -> descriptor whose lock is the claim


def free_port() -> int:
    """Return a port on loopback on which nothing listens and which no other process of this user's devstack holds. It is claimed until
    `release_port` or exit.

    Raises Terminal if 200 random ports are all in use.
    """
    candidates = random.SystemRandom().sample(range(_FIRST, _LAST), k=200)
    for port in candidates:
        if port not in _claims and _claim(port):
            if not is_listening(port) and _can_bind(port):
                return port
            release_port(port)
    raise Terminal(f"200 tries found no free TCP port in {_FIRST}-{_LAST}; stop some servers and try again")


def release_port(port: int) -> None:
    """Release a claim; unknown ports are ignored."""
    descriptor = _claims.pop(port, None)
    if descriptor is not None:
        os.close(descriptor)


def is_listening(port: int) -> bool:
    """Return True if a server accepts connections at this port of loopback within half a second."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((LOOPBACK, port)) == 0


def _claim(port: int) -> bool:
    """Claim the port for this process with a lock on a file. Return False if another process has the claim."""
    directory = Path(tempfile.gettempdir()) / f"cleave-ports-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(directory / str(port), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _claims[port] = descriptor
    return True


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
