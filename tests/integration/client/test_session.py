"""A session against leaders that misbehave, on a real server that says what the test has it say."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from controller.client.servers import Servers
from controller.client.session import Session, boot_seconds
from tests.support.waiting import wait_until


class Script:
    """What each stream says, one after the other; then it stays silent until the end."""

    def __init__(self, *streams: list[tuple[str, object]]) -> None:
        self.streams = list(streams)
        self.opened = 0
        self.over = threading.Event()


def assignment(term: int, *segments: int) -> tuple[str, object]:
    """An event that gives these segments."""
    buckets = [
        {
            "segment_id": segment,
            "bucket_start": 0,
            "bucket_end": 65535,
            "buckets": 1,
            "sealed": False,
            "backing_topic": f"log-{segment}",
            "generation": 1,
            "release": False,
        }
        for segment in segments
    ]
    return "assignment", {
        "term": term,
        "generation": 1,
        "epoch": 0,
        "data_plane": "embedded",
        "buckets": buckets,
    }


@pytest.fixture
def script() -> Iterator[tuple[Script, Servers]]:
    """A server, and a client of it."""
    script = Script()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(json.dumps({"silent_seconds": 5.0}).encode())

        def do_DELETE(self) -> None:
            self._answer(b"")

        def do_GET(self) -> None:
            said = script.streams[min(script.opened, len(script.streams) - 1)]
            script.opened += 1
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for name, document in said:
                self.wfile.write(f"event: {name}\ndata: {json.dumps(document)}\n\n".encode())
                self.wfile.flush()
            if script.opened >= len(script.streams):
                script.over.wait(30)

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    servers = Servers([f"http://127.0.0.1:{server.server_port}"], "token")
    yield script, servers
    script.over.set()
    servers.close()
    server.shutdown()
    thread.join()
    server.server_close()


def segments(session: Session) -> list[int]:
    """What it owns."""
    return [one.segment_id for one in session.assignment.buckets] if session.assignment else []


def test_an_assignment_of_a_deposed_leader_is_not_taken(script: tuple[Script, Servers]) -> None:
    says, servers = script
    says.streams = [[assignment(2, 1, 2)], [assignment(1, 3)], [assignment(2, 1, 2, 4)]]
    told: list[Session] = []
    owned: list[list[int]] = []
    session = Session(
        servers, "topic://a/b/c", "s", "me", on_change=lambda: owned.extend(map(segments, told))
    )
    told.append(session)

    wait_until(lambda: segments(session) == [1, 2, 4], message="the leader that was deposed is left")

    assert [3] not in owned
    session.close()


def test_a_stream_that_breaks_is_opened_anew_and_what_was_owned_stays(script: tuple[Script, Servers]) -> None:
    says, servers = script
    says.streams = [[assignment(1, 1)], [("heartbeat", {})]]
    session = Session(servers, "topic://a/b/c", "s", "me", on_change=lambda: None)

    wait_until(lambda: says.opened == 2 and segments(session), message="it is connected again")

    assert segments(session) == [1]
    assert session.is_current
    session.close()
    assert not session.is_current


def test_who_hears_nothing_for_long_is_not_current(
    script: tuple[Script, Servers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on while the machine sleeps."""
    says, servers = script
    says.streams = [[assignment(1, 1)]]
    session = Session(servers, "topic://a/b/c", "s", "me", on_change=lambda: None)
    wait_until(lambda: session.is_current, message="the leader is heard")

    now = boot_seconds()
    monkeypatch.setattr("controller.client.session.boot_seconds", lambda: now + 6.0)
    assert not session.is_current
    session.close()
