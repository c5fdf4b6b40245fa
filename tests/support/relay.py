"""A TCP relay in front of a server that can become silent, like a paused machine or a cut cable."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from sqlalchemy import make_url


class Relay:
    """Passes bytes in both directions until `stall`; then it keeps connections open and passes nothing."""

    def __init__(self, host: str, port: int, *, listen_port: int = 0) -> None:
        """Lead to `host:port` from `listen_port` of loopback (0: any free port)."""
        self._target = (host, port)
        self._flowing = threading.Event()
        self._flowing.set()
        self._losing = threading.Event()
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", listen_port))
        self.port: int = self._server.getsockname()[1]

    @classmethod
    def before(cls, database: str) -> Self:
        """Lead to the server of the database."""
        url = make_url(database)
        return cls(url.host or "127.0.0.1", url.port or 5432)

    def url_of(self, database: str) -> str:
        """Return the address of the database through this relay."""
        through = make_url(database).set(host="127.0.0.1", port=self.port)
        return through.render_as_string(hide_password=False)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flowing.set()
        for connection in (self._server, *self._sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    @property
    def connections(self) -> int:
        """Number of connections accepted so far."""
        return len(self._sockets) // 2

    def stall(self) -> None:
        """Pass nothing from now on, in either direction, on old connections and new ones."""
        self._flowing.clear()

    def resume(self) -> None:
        """Pass the bytes that have accumulated, and continue."""
        self._flowing.set()

    def lose_answer(self) -> None:
        """Cut the next connection that gets an answer, instead of passing the answer; later connections are not cut."""
        self._losing.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    arguments = (source, sink, source is far)
                    threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                self._flowing.wait()
                if is_answer and self._losing.is_set():
                    self._losing.clear()
                    break
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
