"""A server that accepts connections and never answers, like the kernel of a frozen process."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self


class SilentServer:
    """A listening socket of loopback from which nothing is accepted; the kernel completes each handshake."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def attempts(self) -> int:
        """Close the connections that were opened since the last call, and return their number."""
        count = 0
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1
