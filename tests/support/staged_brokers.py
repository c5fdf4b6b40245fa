"""Web services that answer as brokers do, and misbehave on demand: real HTTP on loopback, real pages in chunks.

Each `StagedBroker` serves the cluster's list of brokers, its metrics page (the recorded one, with its own topics in place of the recorded
ones) and statistics of topics. Its `manner` replaces the normal answer.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.broker_page import recorded

CHUNK_BYTES = 8_192
_COUNTERS = (b"pulsar_in_messages_total{", b"pulsar_in_bytes_total{", b"pulsar_out_")
_REST = b"".join(
    line
    for line in recorded().splitlines(keepends=True)
    if not line.startswith((*_COUNTERS, b"process_start_time_seconds"))
)
"""The recorded page without what each broker says of itself."""


@dataclass(slots=True)
class Topic:
    """Counters of one topic of a broker; `out` is messages by subscription. A message has 100 bytes."""

    msg_in: int = 0
    out: dict[str, int] = field(default_factory=dict)


Manner = Callable[["_Handler", bytes], None]


class StagedBroker:
    """One broker; use as a context manager. `name` is its name in the cluster."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.broker = self  # type: ignore[attr-defined]
        self.name = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.name}"
        self.cluster: list[str] = [self.name]
        self.topics: dict[str, Topic] = {}
        self.stats: dict[str, Any] = {}
        """By topic: statistics, or the URL of the broker that owns it."""
        self.started_seconds = 1_795_288_128.51
        self.manner: Manner = whole
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.released = threading.Event()
        """Set at the end: whoever is being silent gives up."""

    def __enter__(self) -> StagedBroker:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def page(self) -> bytes:
        """Return its metrics page."""
        lines = [f'process_start_time_seconds{{cluster="standalone"}} {self.started_seconds}']
        for name, topic in self.topics.items():
            labels = f'cluster="standalone",namespace="t/n",topic="{_quoted(name)}"'
            lines.append(f"pulsar_in_messages_total{{{labels}}} {topic.msg_in}")
            lines.append(f"pulsar_in_bytes_total{{{labels}}} {topic.msg_in * 100}")
            for subscription, messages in topic.out.items():
                subscription_labels = f'{labels},subscription="{_quoted(subscription)}"'
                lines.append(f"pulsar_out_messages_total{{{subscription_labels}}} {messages}")
                lines.append(f"pulsar_out_bytes_total{{{subscription_labels}}} {messages * 100}")
        return _REST + "".join(f"{line}\n" for line in lines).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def broker(self) -> StagedBroker:
        """The broker of this connection."""
        broker: StagedBroker = self.server.broker  # type: ignore[attr-defined]
        return broker

    def do_GET(self) -> None:
        """Record one request, and answer it in the broker's manner."""
        self.broker.requests.append((self.path, dict(self.headers)))
        path = urlsplit(self.path).path
        if path == "/metrics/":
            body: Any = self.broker.page()
        elif path.startswith("/admin/v2/brokers"):
            return self.answer(200, json.dumps(self.broker.cluster).encode())
        else:
            _, _, _, domain, tenant, namespace, name, _ = path.split("/")
            body = self.broker.stats.get(f"{domain}://{tenant}/{namespace}/{unquote(name)}")
            if body is None:
                return self.answer(404, b'{"reason":"Topic not found"}')
            if isinstance(body, str):
                return self.answer(307, b"", Location=body + self.path)
            body = json.dumps(body).encode()
        with contextlib.suppress(OSError):  # the reader had enough
            self.broker.manner(self, body)
        return None

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        """Send a complete answer with its length."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def begin(self, header: str, value: str) -> None:
        """Send the status 200 and one header."""
        self.send_response(200)
        self.send_header(header, value)
        self.end_headers()

    def chunks(self, body: bytes) -> Iterator[None]:
        """Send the body chunk by chunk, yielding after each, and the end after the last."""
        self.begin("Transfer-Encoding", "chunked")
        for begin in range(0, len(body), CHUNK_BYTES):
            piece = body[begin : begin + CHUNK_BYTES]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
            yield
        self.wfile.write(b"0\r\n\r\n")

    def hang_up(self) -> None:
        """Close the connection at once."""
        self.close_connection = True

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""


def whole(handler: _Handler, body: bytes) -> None:
    """Send the whole page, as a broker does."""
    for _ in handler.chunks(body):
        pass


def silent(handler: _Handler, _body: bytes) -> None:
    """Accept the request, and send nothing."""
    handler.broker.released.wait()


def stalling(handler: _Handler, body: bytes) -> None:
    """Send the first chunk, then nothing."""
    for _ in handler.chunks(body):
        handler.broker.released.wait()


def dripping(handler: _Handler, body: bytes) -> None:
    """Announce one whole chunk and send it byte by byte, so that no time-out of a socket occurs."""
    handler.begin("Transfer-Encoding", "chunked")
    handler.wfile.write(b"%x\r\n" % len(body))
    for byte in body:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        if handler.broker.released.wait(0.02):
            return


def dripping_its_head(handler: _Handler, _body: bytes) -> None:
    """Send the head of the answer without end."""
    while not handler.broker.released.wait(0.02):
        handler.wfile.write(b"H")


def dying(handler: _Handler, body: bytes) -> None:
    """Send all but the last chunk, up to the end of a line, then close the connection."""
    handler.begin("Transfer-Encoding", "chunked")
    half = body[: body.rindex(b"\n", 0, len(body) - 200) + 1]
    handler.wfile.write(b"%x\r\n%s\r\n" % (len(half), half))
    handler.hang_up()


def endless_length(handler: _Handler, body: bytes) -> None:
    """Send neither a length nor chunks, so that only the end of the connection ends the body."""
    handler.begin("Connection", "close")
    handler.wfile.write(body)


def failing(handler: _Handler, _body: bytes) -> None:
    """Answer 500, like a broken web service."""
    handler.answer(500, b"<html>Internal Server Error</html>")


def refusing(handler: _Handler, _body: bytes) -> None:
    """Answer 401, as for an unknown token."""
    handler.answer(401, b"HTTP 401 Unauthorized")


def talking_of_something_else(handler: _Handler, _body: bytes) -> None:
    """Answer as another web service at the address would."""
    handler.answer(200, b"<html>" + b"x" * 200_000)


def _quoted(value: str) -> str:
    """Return a label as Pulsar 4.2 writes it: the quotation mark is escaped, the backslash is not."""
    return value.replace('"', '\\"')
