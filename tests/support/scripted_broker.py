"""An HTTP server that answers as a test defines: a status, half a body, a long silence, a cut connection.

Behaviours are used in order, one for each request; the last one serves all further requests. Every request is recorded.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Behaviour = Callable[["Conversation"], None]


@dataclass(frozen=True)
class ReceivedRequest:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Conversation(BaseHTTPRequestHandler):
    """One connection; the behaviours act on it."""

    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        """Record the request, and perform the next behaviour."""
        self.raw_requestline = self.rfile.readline(65_537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        broker: ScriptedBroker = self.server.broker  # type: ignore[attr-defined]
        broker.received.append(ReceivedRequest(self.command, self.path, dict(self.headers.items()), body))
        broker.next_behaviour()(self)

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Send a complete answer."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def cut(self) -> None:
        """End the connection at once."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


@dataclass
class ScriptedBroker:
    """The server's address, its script, and the requests it received (`received`)."""

    url: str
    script: list[Behaviour]
    released: threading.Event = field(default_factory=threading.Event)
    received: list[ReceivedRequest] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_behaviour(self) -> Behaviour:
        """Return the behaviour for this request; the last one stays in the script."""
        with self._lock:
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def behaves(self, *behaviours: Behaviour) -> None:
        """Replace the script."""
        with self._lock:
            self.script[:] = behaviours

    # What it can be told.

    def says(self, status: int, document: object = None, **headers: str) -> Behaviour:
        """Return a behaviour: an answer with that document, or without a body."""
        body = b"" if document is None else json.dumps(document).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return lambda conversation: conversation.answer(status, body, named)

    def refuses(self, status: int, reason: str, **headers: str) -> Behaviour:
        """Return a behaviour: a refusal in a broker's form."""
        return self.says(status, {"reason": reason}, **headers)

    def says_text(self, status: int, text: str) -> Behaviour:
        """Return a behaviour: an answer that is not JSON."""
        return lambda conversation: conversation.answer(status, text.encode(), {})

    def cuts(self) -> Behaviour:
        """Return a behaviour: the connection ends without an answer."""
        return lambda conversation: conversation.cut()

    def cuts_in_mid_answer(self) -> Behaviour:
        """Return a behaviour: a thousand bytes are announced and a few are sent."""

        def act(conversation: Conversation) -> None:
            conversation.send_response(200)
            conversation.send_header("Content-Length", "1000")
            conversation.end_headers()
            conversation.wfile.write(b'{"state": "Te')
            conversation.wfile.flush()
            conversation.cut()

        return act

    def is_silent(self) -> Behaviour:
        """Return a behaviour: no answer until the test ends."""

        def act(conversation: Conversation) -> None:
            self.released.wait(60)
            conversation.close_connection = True

        return act

    def stops_in_a_body_without_length(self, body: bytes) -> Behaviour:
        """Send the beginning of a body without a stated length, then nothing until the test ends."""

        def act(conversation: Conversation) -> None:
            conversation.send_response(200)
            conversation.end_headers()
            conversation.wfile.write(body)
            conversation.wfile.flush()
            self.released.wait(60)
            conversation.close_connection = True

        return act

    def drips(self) -> Behaviour:
        """Return a behaviour: one byte at short intervals, so that no wait for a byte times out, until the test ends."""

        def act(conversation: Conversation) -> None:
            conversation.send_response(200)
            conversation.send_header("Content-Length", "1000000")
            conversation.end_headers()
            while not self.released.wait(0.02):
                try:
                    conversation.wfile.write(b" ")
                except OSError:
                    break
            conversation.close_connection = True

        return act


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: a client that disconnects, or whose certificate is refused, is part of the test."""


@contextmanager
def scripted_broker(tls: ssl.SSLContext | None = None) -> Iterator[ScriptedBroker]:
    """Run a server on loopback that answers 500 until it gets a script."""
    server = _Server(("127.0.0.1", 0), Conversation)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    scheme = "http" if tls is None else "https"
    broker = ScriptedBroker(f"{scheme}://127.0.0.1:{server.server_port}", [])
    broker.behaves(broker.refuses(500, "not told what to say"))
    server.broker = broker  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield broker
    finally:
        broker.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
