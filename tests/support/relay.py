"""A TCP relay in front of a server that can be told to go silent, as a paused machine or a cut cable would."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Relay:
    """Passes bytes both ways until `stall`; then it keeps connections open and says nothing."""

    def __init__(self, host: str, port: int, *, listen_port: int = 0) -> None:
        """Towards `host:port`, from `listen_port` of loopback (0: any that is free)."""
        self._target = (host, port)
        self._flowing = threading.Event()
        self._flowing.set()
        self._losing = threading.Event()
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", listen_port))
        self.port: int = self._server.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flowing.set()
        for one in (self._server, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    @property
    def connections(self) -> int:
        """How many were accepted so far."""
        return len(self._sockets) // 2

    def stall(self) -> None:
        """Pass nothing on from now on, in either direction, old connections and new."""
        self._flowing.clear()

    def resume(self) -> None:
        """Pass on what has piled up, and go on."""
        self._flowing.set()

    def lose_answer(self) -> None:
        """Cut the next connection that is answered, in place of the answer; those after it are whole."""
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
