"""A session against leaders that misbehave, on a real server that says what the test has it say."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpcore
import pytest

from controller.client.servers import MOST_IDLE_CONNECTIONS, Servers, topic_path
from controller.client.session import Session, boot_seconds
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.embedded import EmbeddedLogClient
from controller.domain.errors import StoreUnavailable, TopicNotFound
from tests.support.waiting import wait_until


class Script:
    """What each stream says, one after the other; then it stays silent until the end."""

    def __init__(self, *streams: list[tuple[str, object]]) -> None:
        self.streams = list(streams)
        self.opened = 0
        self.timing: object = {"topic_id": 1, "silent_seconds": 5.0, "grace_seconds": 10.0}
        self.pulse_status = 204
        self.refusals = 0
        """How often registering is refused before it is taken."""
        self.heartbeat_seconds = 30.0
        self.over = threading.Event()


def assignment(term: int, *segments: int, generation: int = 1) -> tuple[str, object]:
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
        "generation": generation,
        "epoch": 0,
        "origin": 1,
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
            if self.path.endswith("/pulse"):
                self._answer(b"", script.pulse_status)
            elif script.refusals:
                script.refusals -= 1
                self._answer(
                    b'{"reason": "nobody leads topic://a/b/c just now", "kind": "StoreUnavailable"}', 503
                )
            else:
                self._answer(json.dumps(script.timing).encode())

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
            while script.opened >= len(script.streams) and not script.over.wait(script.heartbeat_seconds):
                self.wfile.write(b"event: heartbeat\ndata: {}\n\n")

        def _answer(self, body: bytes, status: int = 200) -> None:
            self.send_response(status)
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


def test_a_leader_of_a_database_that_went_back_in_time_is_followed_at_once(
    script: tuple[Script, Servers],
) -> None:
    """Terms are delivered once more; the generation of the subscription was raised above all that were lost."""
    says, servers = script
    says.timing = {"topic_id": 1, "silent_seconds": 5.0, "grace_seconds": 600.0}  # no new session meanwhile
    says.streams = [[assignment(9, 1)], [assignment(2, 4, generation=1_000_001)]]
    session = Session(servers, "topic://a/b/c", "s", "me", on_change=lambda: None)

    wait_until(lambda: segments(session) == [4], message="the assignment is taken")

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
    says.pulse_status = 503  # one that is heard at the later time would be news
    session = Session(servers, "topic://a/b/c", "s", "me", on_change=lambda: None)
    wait_until(lambda: session.is_current, message="the leader is heard")

    now = boot_seconds()
    monkeypatch.setattr("controller.client.session.boot_seconds", lambda: now + 6.0)
    assert not session.is_current
    session.close()


def test_a_leader_that_talks_and_answers_nothing_is_no_leader(script: tuple[Script, Servers]) -> None:
    """One that was deposed, or has lost its database, goes on with its heartbeats."""
    says, servers = script
    says.streams = [[assignment(1, 1)]]
    says.timing = {"topic_id": 1, "silent_seconds": 0.6, "grace_seconds": 1.2}
    says.pulse_status, says.heartbeat_seconds = 503, 0.05
    session = Session(servers, "topic://a/b/c", "s", "me", on_change=lambda: None)
    wait_until(lambda: segments(session) == [1], message="it is told what it owns")

    wait_until(lambda: not session.is_current, message="it stops by its own clock")
    wait_until(lambda: session.is_lost, message="it lets go")
    assert says.opened == 1

    says.pulse_status = 204
    wait_until(lambda: session.is_current, message="the leader answers again")
    session.close()


def test_nonsense_of_a_server_ends_no_session(script: tuple[Script, Servers]) -> None:
    says, servers = script
    says.streams = [[assignment(1, 1)], [("assignment", {"term": "nonsense"})], [assignment(1, 1, 2)]]
    session = Session(servers, "topic://a/b/c", "s", "me", on_change=lambda: None)

    wait_until(lambda: segments(session) == [1, 2], message="it has connected again")

    session.demand_alive()
    session.close()


def test_a_topic_between_two_leaders_is_waited_for_when_a_consumer_comes(
    script: tuple[Script, Servers],
) -> None:
    """An application that was started at such a moment ended, and with it its share of the work."""
    says, servers = script
    says.streams = [[assignment(1)]]
    says.refusals = 2
    with pytest.raises(StoreUnavailable, match="nobody leads"):
        Session(servers, "topic://a/b/c", "s", "me", on_change=lambda: None)

    logs = EmbeddedLogClient(
        "postgresql://nobody@127.0.0.1:9/nothing"
    )  # it owns nothing, so nothing is opened
    consumer = StreamConsumer(servers, logs, "topic://a/b/c", "s", "me", patience_seconds=30.0)
    wait_until(lambda: consumer._session.assignment is not None, message="it is told what it owns")
    assert says.refusals == 0
    consumer.close()
    logs.close()


def test_what_is_no_worker_is_named(script: tuple[Script, Servers]) -> None:
    says, servers = script
    says.timing = ["something else"]
    with pytest.raises(StoreUnavailable, match="does not come from a worker of Cleave"):
        Session(servers, "topic://a/b/c", "s", "me", on_change=lambda: None)


def test_a_worker_that_cannot_answer_is_passed_over(script: tuple[Script, Servers]) -> None:
    _, well = script
    with sick_server() as sick:
        servers = Servers([sick, *well._urls], "token")
        assert servers.ask("POST", "/anything", document={}) == {
            "topic_id": 1,
            "silent_seconds": 5.0,
            "grace_seconds": 10.0,
        }
        servers.close()
        alone = Servers([sick], "token")
        with pytest.raises(StoreUnavailable, match="away"):
            alone.ask("POST", "/anything", document={})
        alone.close()


@contextmanager
def sick_server() -> Iterator[str]:
    """A worker whose database is away."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = b'{"reason": "PostgreSQL is away", "kind": "StoreUnavailable"}'
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_a_call_costs_does_not_grow_with_the_streams_that_are_open(
    script: tuple[Script, Servers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of consumers share one `Servers`, and the library looks at each connection of a pool at each call."""
    says, servers = script
    says.streams = [[("heartbeat", {})]]
    looked_at: list[object] = []
    has_expired = httpcore.HTTPConnection.has_expired
    monkeypatch.setattr(
        httpcore.HTTPConnection, "has_expired", lambda one: looked_at.append(one) or has_expired(one)
    )
    being_read = []  # a stream whose reader is gone is closed
    with ExitStack() as open_streams:
        for _ in range(20):
            feed = open_streams.enter_context(
                servers.events("/api/v1/topics/a/b/c/events", query={}, silent_seconds=30.0)
            )
            being_read.append(iter(feed))
            assert next(being_read[-1]).event == "heartbeat"
        looked_at.clear()
        for _ in range(3):
            servers.ask("POST", "/api/v1/topics/a/b/c/pulse", document={})
        assert len(set(looked_at)) <= 1
        servers.close()


def test_few_idle_connections_are_kept(servers: Servers) -> None:
    """However many calls there were at once."""
    begin = threading.Barrier(40)

    def ask(_: int) -> None:
        begin.wait(20)
        with suppress(TopicNotFound):
            servers.ask("GET", f"{topic_path('topic://a/b/c')}/segments")

    with ThreadPoolExecutor(40) as calls:
        list(calls.map(ask, range(40)))
    with suppress(TopicNotFound):
        servers.ask("GET", f"{topic_path('topic://a/b/c')}/segments")

    assert 1 <= len(servers._http._transport._pool.connections) <= MOST_IDLE_CONNECTIONS


def test_closing_the_servers_breaks_their_streams(script: tuple[Script, Servers]) -> None:
    """Whoever waits for an event is told."""
    says, servers = script
    says.streams = [[("heartbeat", {})]]
    with servers.events("/api/v1/topics/a/b/c/events", query={}, silent_seconds=60.0) as feed:
        events = iter(feed)
        assert next(events).event == "heartbeat"
        closing = threading.Timer(0.05, servers.close)
        closing.start()
        with pytest.raises(StoreUnavailable):
            next(events)
        closing.join()
