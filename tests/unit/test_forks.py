"""Objects over a fork: which ones a child may use, and that each client is one or the other kind."""

from __future__ import annotations

import asyncio
import importlib
import os
import pkgutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from inspect import isclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import controller.client
import controller.dataplane
import controller.store.postgres
from controller.client.servers import EventFeed, Servers
from controller.dataplane.postgres_listener import PostgresListener
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.file_descriptors import readable
from controller.forks import PAGE, OneProcess, Renewed
from controller.postgres import connection
from tests.support.forking import in_child

_ROOT = Path(__file__).resolve().parents[2]
PARTS = {
    "AdminCalls", "Attachments", "BackgroundCalls", "BatchSender", "Connections", "ConsumerReader", "CounterScraper", "DelayedSends",
    "FencedSegments", "Gates", "Intake", "KeyCounts", "KeySamples", "LayoutWatch", "Namespaces", "QueueKeeper", "ReaderSet", "ReaderThreads", "SegmentReaders",
    "SegmentWatch", "Session", "SuspectReports",
}  # fmt: skip
"""Classes whose objects only others have that are guarded."""
SHARED = {
    "ClosesOnExit": "has nothing itself",
    "ConsumerHistory": "a file that is only appended to",
    "EmbeddedDataPlane": "stands on PostgresCalls",
    "ProducerHistory": "a file that is only appended to",
    "SeekHistory": "a file that is only appended to",
    "StoresOnExit": "has nothing itself",
}
"""Classes that need no guard, and why."""


class Clock(OneProcess):
    """Ticks."""

    _endings = frozenset({"close", "stop"})
    kind = "clock"

    def __init__(self, name: str) -> None:
        self.name, self.ended = name, False

    @property
    def ticks(self) -> int:
        """How often."""
        return 7

    def tick(self, times: int) -> int:
        """Tick."""
        return times

    async def wait(self) -> str:
        """Until it ticks."""
        return "ticked"

    def close(self) -> None:
        """Tick no more."""
        self.ended = True

    def stop(self) -> None:
        """The same."""
        self.ended = True

    def _described(self) -> str:
        return f"Clock of {self.name}"


class Alarm(Clock):
    """A clock with a method of its own."""

    def ring(self) -> str:
        """Ring."""
        return "rung"


class Box(Renewed):
    """Has a lock."""

    def __init__(self) -> None:
        self._begin_in_child()

    def _begin_in_child(self) -> None:
        self.lock = threading.Lock()


def test_in_its_own_process_an_object_is_as_it_was_written() -> None:
    alarm = Alarm("the hall")

    assert (alarm.ticks, alarm.tick(2), alarm.ring(), asyncio.run(alarm.wait())) == (7, 2, "rung", "ticked")
    assert Clock.tick.__doc__ == "Tick."
    assert Clock.ticks.__doc__ == "How often."
    alarm.close()
    assert alarm.ended


@pytest.mark.parametrize(
    "use",
    [
        lambda alarm: alarm.ticks,
        lambda alarm: alarm.tick(2),
        lambda alarm: alarm.tick(),  # before its arguments are looked at
        lambda alarm: alarm.ring(),
        lambda alarm: alarm.wait().send(None),
    ],
)
def test_a_child_is_told_what_to_do(use: Callable[[Alarm], object]) -> None:
    alarm = Alarm("the hall")

    told = in_child(lambda: use(alarm))

    assert told.startswith(
        f"Terminal: this Clock of the hall was made in process {os.getpid()} and is used in process "
    )
    assert told.endswith(f": make one after the fork, in each process; see {PAGE}")
    assert (_ROOT / PAGE).is_file()


@pytest.mark.parametrize("ending", ["close", "stop"])
def test_a_child_ends_nothing_of_its_parents(ending: str) -> None:
    alarm = Alarm("the hall")

    assert in_child(lambda: [getattr(alarm, ending)(), alarm.ended]) == [None, False]


def test_what_a_child_makes_is_its_own_and_not_its_childs() -> None:
    def made_there() -> object:
        alarm = Alarm("the cellar")
        return [alarm.ring(), in_child(alarm.ring)]

    own, of_grandchild = in_child(made_there)

    assert own == "rung"
    assert of_grandchild.startswith("Terminal: this Clock of the cellar")


def test_a_lock_that_another_thread_had_is_another_one_in_the_child() -> None:
    box = Box()
    with box.lock:
        assert in_child(lambda: box.lock.acquire(timeout=0)) is True


def test_what_is_half_made_keeps_nothing_else_from_beginning_in_a_child() -> None:
    class Late(Renewed):
        def _begin_in_child(self) -> None:
            self.seen = self.missing  # type: ignore[attr-defined]

    half_made = [Late() for _ in range(8)]
    boxes = [Box() for _ in range(8)]
    for box in boxes:
        box.lock.acquire()

    assert in_child(lambda: [box.lock.locked() for box in boxes]) == [False] * len(boxes)
    assert half_made


class _Ports(BaseHTTPRequestHandler):
    """Answers with the port that the request came from."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = str(self.client_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_values: object) -> None: ...


def test_a_child_asks_workers_on_connections_of_its_own() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Ports) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        servers = Servers([f"http://127.0.0.1:{server.server_port}"], "token")
        try:
            own = servers.ask("GET", "/")
            with servers._lock:
                in_childs_hand, can_lock = in_child(
                    lambda: [servers.ask("GET", "/"), servers._lock.acquire(timeout=0)]
                )
            assert servers.ask("GET", "/") == own
            servers.close()
            after_close = in_child(lambda: servers.ask("GET", "/"))
        finally:
            servers.close()
            server.shutdown()
            serving.join()

    assert in_childs_hand != own
    assert can_lock
    assert after_close.startswith("Terminal: this client of Cleave was closed")


def test_a_child_connects_to_postgres_whatever_another_thread_did() -> None:
    with connection._serving_lock:
        assert in_child(lambda: connection._serving_lock.acquire(timeout=0))


def test_a_child_breaks_off_no_stream_of_its_parents() -> None:
    here, there = socket.socketpair()
    stream = SimpleNamespace(get_extra_info=lambda _name: here)
    feed = EventFeed(SimpleNamespace(extensions={"network_stream": stream}))  # type: ignore[arg-type]

    assert in_child(feed.hang_up) is None

    assert not readable(there.fileno(), timeout_seconds=0.0)
    feed.hang_up()
    assert readable(there.fileno(), timeout_seconds=0.0)
    here.close()
    there.close()


def test_a_child_wakes_no_listener_of_its_parents() -> None:
    listener = PostgresListener(
        "postgresql://nobody@localhost:1/none",
        ["channel"],
        on_notification=lambda _id: None,
        on_gap=lambda: None,
    )

    assert in_child(listener.close) is None

    assert not readable(listener._listener._wake_read, timeout_seconds=0.0)
    listener.close()


def test_a_child_frees_nothing_of_its_parents() -> None:
    """Neither when the last reference goes nor when it ends as any Python process does."""
    program = """
import gc, os
from controller.forks import OneProcess
class Library:
    def __del__(self, say=os.write):
        say(1, b"freed ")
class Client(OneProcess):
    def __init__(self):
        self._library = Library()
first, second = Client(), Client()
pid = os.fork()
if pid == 0:
    del first
    gc.collect()
else:
    os.waitpid(pid, 0)
    os.write(1, b"ends ")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=_ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert ended.stdout == "ends freed freed "


@pytest.mark.parametrize("kind", [PulsarDataPlane, PulsarScalableDataPlane])
def test_a_child_may_not_use_the_brokers_planes(kind: type[PulsarDataPlane]) -> None:
    plane = kind(PulsarAccess(admin_url="http://localhost:1"))

    assert in_child(lambda: plane.list_segments("topic://a/b/c")).startswith(
        f"Terminal: this {kind.__name__} "
    )
    assert in_child(plane.close) is None
    plane.close()


def _modules(*packages: ModuleType) -> Iterator[ModuleType]:
    for package in packages:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)


def test_whatever_is_closed_says_what_it_is_in_a_child() -> None:
    unguarded = {
        name
        for module in _modules(controller.client, controller.dataplane, controller.store.postgres)
        for name, kind in vars(module).items()
        if isclass(kind)
        and kind.__module__ == module.__name__
        and not name.startswith("_")
        and not getattr(kind, "_is_protocol", False)
        and (hasattr(kind, "close") or hasattr(kind, "dispose"))
        and not issubclass(kind, OneProcess | Renewed)
    }

    assert unguarded == PARTS | SHARED.keys()
