"""An HTTP proxy on loopback: it sends each request on to the server that its first line names, and records the first lines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests

HOP_BY_HOP = frozenset(
    {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "content-length"}
)


@dataclass
class ForwardProxy:
    """Its address, and the first line of each request (`asked`)."""

    url: str
    asked: list[str] = field(default_factory=list)
    refuses: int | None = None
    """Status that it answers itself in place of the server."""


@contextmanager
def forward_proxy() -> Iterator[ForwardProxy]:
    """Run a proxy until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            proxy.asked.append(f"{self.command} {self.path}")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, content = proxy.refuses or 200, {}, b"who are you?"
            if proxy.refuses is None:
                status, headers, content = self._forwarded(body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _forwarded(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            request_headers = {
                name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP
            }
            with requests.Session() as session:
                session.trust_env = False
                answer = session.request(
                    self.command,
                    self.path,
                    headers=request_headers,
                    data=body,
                    timeout=30,
                    allow_redirects=False,
                )
            response_headers = {
                name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP
            }
            return answer.status_code, response_headers, answer.content

        do_GET = do_POST = do_PUT = do_DELETE = do_CONNECT = _answer  # noqa: N815  # the library's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        proxy = ForwardProxy(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield proxy
        server.shutdown()
        thread.join()
