"""`cleave top` and `cleave watch`: one picture where it is piped, and on a terminal a picture that follows what happens."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import psycopg2
import pytest
from psycopg2 import sql
from sqlalchemy import make_url

from controller.commands.live import ring
from controller.dataplane.embedded import EmbeddedDataPlane
from controller.domain.evaluator import ALL_LANES
from controller.services.autoscaler import run_pass
from controller.store.topics import topics
from tests.integration.commands.conftest import TOPIC
from tests.support.command_line import CommandLine
from tests.support.over_http import OverHttp, server_process
from tests.support.reports import report_load
from tests.support.waiting import wait_until

LINES, COLUMNS = 40, 140


def load(cleave: CommandLine, rates: dict[int, float]) -> None:
    with cleave.store.transaction() as tx:
        topic = topics.find_topic(tx, "topic://acme/shop/orders")
        report_load(tx, topic.topic_id, rates, cold_for=timedelta(hours=1))


def decide(cleave: CommandLine) -> None:
    """As a pass does."""
    planes = {"embedded": EmbeddedDataPlane(cleave.store.address, call_timeout_seconds=5.0)}
    run_pass(cleave.store, planes, ALL_LANES, decided_by="tests", limit=10)


def test_the_fleet_is_told_hottest_first(cleave: CommandLine, orders: str) -> None:
    cleave.ok("topics", "create", "acme/shop/quiet")
    load(cleave, {0: 25_000.0, 1: 5_000.0})

    said = cleave.ok("top", "--once").splitlines()
    assert "2 topics, 3 segments, 0 workers up" in said[0]
    listed = [line for line in said if line.startswith("topic://")]
    assert len(listed) == 2
    [hot] = [line for line in listed if "orders" in line]
    assert "██████████  250%" in hot
    assert "30,000.0" in hot
    assert [line for line in cleave.ok("top", "--find", "quiet").splitlines() if "orders" in line] == []

    document = cleave.json("top", "--find", "orders")
    assert [one["hot_segments"] for one in document["topics"]] == [1]
    assert document["health"]["active_segments"] == 3


def test_what_cannot_wait_stands_on_top(cleave: CommandLine, orders: str) -> None:
    cleave.ok("segments", "split", orders, "0", "--no-wait")
    cleave.execute("UPDATE cleave.operation SET deadline = clock_timestamp() WHERE finished_at IS NULL")
    assert "1 operation(s) make no progress" in cleave.ok("top")


def test_a_topic_is_told_with_what_is_done_and_what_is_left_alone(cleave: CommandLine, orders: str) -> None:
    load(cleave, {0: 25_000.0, 1: 5_000.0})
    cleave.ok("policy", "set", orders, "max_segments=2")
    decide(cleave)
    cleave.ok("segments", "split", orders, "1", "--no-wait")

    said = cleave.ok("watch", orders)
    assert "live, epoch 0, 2 segments on embedded" in said
    rows = {line.split()[0]: line for line in said.splitlines() if re.match(r" *\d+ +[0-9a-f]{4}-", line)}
    assert set(rows) == {"0", "1"}
    assert "██████████  250%" in rows["0"]
    assert "in operation 2" in rows["1"]
    assert re.search(r"2 +split +intended +1 →", said)
    assert re.search(r"load +0? +at-max-segments +\S+ 2, needs", said), said

    document = cleave.json("watch", orders)
    assert [one["segment_id"] for one in document["segments"]] == [0, 1]
    assert document["operations"][0]["kind"] == "split"


def test_a_topic_that_is_not_there_is_named(cleave: CommandLine) -> None:
    assert "topic://acme/shop/nothing" in cleave.refused("watch", "acme/shop/nothing")


@pytest.mark.parametrize("width", [1, 7, 80, 141])
def test_the_ring_fills_its_line_whatever_its_width(width: int) -> None:
    edges = [0, 1, 100, 0x4000, 0x8000, 0xFFFF, 0x10000]
    segments = [
        {"segment_id": n, "range_start": a, "range_end": b - 1, "hottest_ratio": n / 3 if n else None}
        for n, (a, b) in enumerate(pairwise(edges))
    ]
    assert len(ring(segments, width)) == width


@contextmanager
def on_a_terminal(
    settings: Mapping[str, str], *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], list[str]]]:
    """The command on a terminal of 40 lines of 140 columns, and what it wrote, pieces in order."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    written: list[str] = []

    def read() -> None:
        try:
            while piece := os.read(ours, 65536):
                written.append(piece.decode(errors="replace"))
        except OSError:
            pass  # it has ended

    environment = {**os.environ, **settings, "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "controller.commands.cli", *arguments]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield process, written
        finally:
            process.kill()
            reader.join()
            os.close(ours)


def test_on_a_terminal_it_follows_what_happens_until_it_is_left(
    cleave: CommandLine, orders: str, database: str
) -> None:
    with on_a_terminal({"CLEAVE_DATABASE_URL": database}, "watch", orders, "--every", "0.2") as (
        process,
        written,
    ):
        wait_until(lambda: "epoch 0, 2 segments" in "".join(written), message="the first picture")
        cleave.ok("segments", "split", orders, "0")
        wait_until(lambda: "epoch 1, 3 segments" in "".join(written), message="what follows")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    assert "Traceback" not in "".join(written)


@contextmanager
def closed(url: str) -> Iterator[None]:
    """The database lets nobody in meanwhile, and whoever looks live is cut off."""
    there = make_url(url)
    elsewhere = there.set(drivername="postgresql", database="postgres").render_as_string(hide_password=False)
    connection = psycopg2.connect(elsewhere)
    connection.autocommit = True
    name = sql.Identifier(there.database or "")
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cleave-live'"
            )
            yield
            cursor.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
    finally:
        connection.close()


def test_a_database_that_goes_away_is_said_and_waited_for(
    cleave: CommandLine, orders: str, database: str
) -> None:
    with on_a_terminal({"CLEAVE_DATABASE_URL": database}, "top", "--every", "0.2") as (process, written):
        wait_until(lambda: "1 topics, 2 segments" in "".join(written), message="the first picture")
        with closed(database):
            wait_until(lambda: "trying again" in "".join(written), message="it says so")
        cleave.ok("segments", "split", orders, "0")
        wait_until(lambda: "1 topics, 3 segments" in "".join(written), message="it goes on")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("command", "at_first", "later"),
    [
        (("top",), "1 topics, 2 segments", "1 topics, 3 segments"),
        (("watch", TOPIC), "epoch 0, 2 segments", "epoch 1, 3 segments"),
    ],
    ids=["top", "watch"],
)
def test_a_server_that_goes_away_is_said_and_waited_for(
    cleave: CommandLine,
    orders: str,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    at_first: str,
    later: str,
) -> None:
    with server_process(database, tmp_path) as (server, address):
        settings = OverHttp(cleave, capsys, monkeypatch, address).settings
        with on_a_terminal(settings, *command, "--every", "0.2") as (process, written):
            wait_until(lambda: at_first in "".join(written), timeout_seconds=90, message="the first picture")
            server.kill()
            wait_until(lambda: "trying again" in "".join(written), message="it says so")
            cleave.ok("segments", "split", orders, "0")
            assert later not in "".join(written)
            server.start()
            wait_until(lambda: later in "".join(written), timeout_seconds=90, message="it goes on")
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0
    assert "Traceback" not in "".join(written)
