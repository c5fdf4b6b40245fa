"""One TCP port that leads to the present primary, as a proxy, a pooler or a virtual address does.

Clients see neither a new address nor which server answers. Open connections stay with their server until that server's process ends, also
while that process is frozen.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from controller.devstack.ports import LOOPBACK


class PrimaryRelay:
    """Accepts connections from construction to `close`; `point_to` names the server of new connections."""

    def __init__(self) -> None:
        self._target: int | None = None
        self._sockets: set[socket.socket] = set()
        self._server = socket.create_server((LOOPBACK, 0), backlog=128)
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="primary-relay", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def point_to(self, port: int | None) -> None:
        """Lead new connections to `port` on loopback; None: close new connections at once, since there is no primary."""
        self._target = port

    def close(self) -> None:
        """Close every connection and accept no more."""
        for connection in (self._server, *self._sockets):
            _hang_up(connection)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        """Connect to the target and pass bytes in both directions. Runs in a separate thread, so that a frozen server does not delay
        other connections.
        """
        try:
            if self._target is None:
                raise ConnectionRefusedError("no primary")
            far = socket.create_connection((LOOPBACK, self._target))
        except OSError:
            near.close()
            return
        self._sockets |= {near, far}
        threading.Thread(target=self._pump, args=(near, far), daemon=True).start()
        self._pump(far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
        for connection in (source, sink):
            _hang_up(connection)
            self._sockets.discard(connection)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
