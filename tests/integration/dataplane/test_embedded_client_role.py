"""Role cleave_client: an application's login produces and consumes, and can do nothing else."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg2
import pytest

from controller.dataplane.embedded import EmbeddedDataPlane, EmbeddedLogClient
from controller.dataplane.log_client import OutgoingMessage
from controller.devstack.postgres import PostgresServer
from controller.domain.errors import (
    FencedOut,
    LostRace,
    SegmentNotFound,
    SegmentTerminated,
    SubscriptionNotFound,
    Terminal,
)
from controller.domain.hash_range import FULL_RANGE
from tests.integration.dataplane.test_embedded import query
from tests.support.planes import Planes, payloads
from tests.support.waiting import wait_until

LOW, HIGH = FULL_RANGE.halves()


@dataclass(frozen=True)
class Application:
    """The controller's plane and the logs as the application's login sees them."""

    planes: Planes
    url: str


@pytest.fixture
def application(postgres_server: PostgresServer, database: str) -> Iterator[Application]:
    user = f"application_{secrets.token_hex(4)}"
    query(database, f"CREATE ROLE {user} LOGIN PASSWORD 'pw' IN ROLE cleave_client")
    url = postgres_server.url(database.rpartition("/")[2], user=user, password="pw")
    planes = Planes(EmbeddedDataPlane(database), EmbeddedLogClient(url))
    yield Application(planes, url)
    planes.close()
    query(database, f"DROP ROLE {user}")


def test_it_can_do_all_that_a_log_client_does(application: Application) -> None:
    planes = application.planes
    log = planes.log("s")
    rung = threading.Event()
    reader = planes.logs.open_reader(log, "s", owner="a", live_owners=["a"], on_arrival=rung.set)
    planes.readers.append(reader)
    assert planes.logs.append(log, [OutgoingMessage(b"1", b"k")], producer="p", sequence=1) == 1
    wait_until(rung.is_set, message="the arrival rings")
    (first,) = reader.read(5)
    reader.acknowledge(first.position)
    with pytest.raises(LostRace):
        planes.reader(log, "s", owner="b", live_owners=["a", "b"])
    low, high = (planes.reader(log, "s", owner="a", live_owners=["a"], bucket=part) for part in (LOW, HIGH))
    with pytest.raises(FencedOut):
        reader.read(1)
    planes.send_to(log, LOW, b"2")
    planes.send_to(log, HIGH, b"3")
    planes.plane.terminate_segment(log)
    for one, payload in ((low, b"2"), (high, b"3")):
        (message,) = one.read(5)
        assert message.payload == payload
        one.acknowledge(message.position)
    assert low.is_drained()
    low.close()
    high.close()
    assert planes.plane.backlog(log, "s") == 0
    with pytest.raises(SegmentTerminated):
        planes.send(log, b"4")
    with pytest.raises(SubscriptionNotFound):
        planes.reader(log, "other")
    with pytest.raises(SegmentNotFound):
        planes.send(planes.plane.backing_topic(planes.topic(), "0000-ffff-0"), b"1")


def test_it_can_share_a_queue_and_read_at_a_position(application: Application) -> None:
    planes = application.planes
    log = planes.log("s")
    planes.send(log, b"1", b"2")
    queue = planes.queue(log, "s")
    first, second = queue.read(2)
    queue.give_back([first.position])
    assert list(queue.acknowledge([second.position])) == []
    assert queue.acknowledge([queue.read(1)[0].position]) == []
    planes.plane.terminate_segment(log)
    assert queue.is_drained()
    queue.close()

    reader = planes.reader_at(log, planes.logs.locate(log, 0))
    assert payloads(reader.read(5)) == [b"1", b"2"]
    assert reader.is_at_end()


@pytest.mark.parametrize(
    "statement",
    [
        *(
            f"SELECT FROM embedded.{table}"
            for table in (
                "log",
                "message",
                "cursor",
                "producer",
                "dropped_log",
                "instance",
                "generation",
                "unsettled",
                "queue_reader",
                "timeline",
            )
        ),
        "UPDATE embedded.cursor SET position = 0",
        "DELETE FROM embedded.message",
        "INSERT INTO embedded.log (name) VALUES ('mine')",
        "SELECT nextval('embedded.generation')",
        "SELECT embedded.move('segment://t/n/x/0000-ffff-0', 's', NULL)",
        "SELECT embedded.backlog('segment://t/n/x/0000-ffff-0', 's')",
        "SELECT embedded.offset_at(1, now())",
        "SELECT embedded.trim_log(1, now(), 1)",
        "SELECT embedded.trimmable(0, now(), 1)",
        "SELECT embedded.lock_parts(1, 's')",
        "SELECT embedded.divide_part(1, 's', 5)",
        "SELECT embedded.join_parts(1, 's', 0)",
        "SELECT embedded.queue_reap(1, 's')",
        "SELECT embedded.timeline_before(1, 5)",
        "SELECT embedded.end_long_transactions(0)",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_try_advisory_xact_lock(1, 2)",
        "SELECT lo_create(0)",
        "SELECT lo_from_bytea(0, 'x')",
        "CREATE TABLE embedded.mine ()",
        "SELECT FROM cleave.topic",
        "SELECT cleave.raise_input('{1}')",
        "SELECT FROM inspect.topics",
        "SELECT FROM staging.load_row",
        "SET ROLE cleave_controller",
        "SET ROLE cleave_owner",
    ],
)
def test_it_can_do_nothing_else(application: Application, statement: str) -> None:
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        query(application.url, statement)


def test_what_it_calls_runs_with_a_path_of_its_own(database: str) -> None:
    """A function with its owner's rights must not find what a caller puts in its way, and nobody else may call it."""
    found = query(
        database,
        "SELECT proname, array_to_string(proconfig, ','), has_function_privilege('public', oid, 'EXECUTE')"
        "  FROM pg_proc WHERE pronamespace = 'embedded'::regnamespace AND prosecdef ORDER BY 1",
    )

    assert [name for name, _, _ in found] == [
        "acknowledge",
        "append",
        "bounds",
        "end_long_transactions",
        "look",
        "missed",
        "open_at",
        "owners",
        "queue_acknowledge",
        "queue_close",
        "queue_give_back",
        "queue_is_drained",
        "queue_keep",
        "queue_open",
        "queue_take",
        "read",
        "read_at",
        "release",
        "take",
    ]
    assert {(path, anybody) for _, path, anybody in found} == {("search_path=pg_catalog, pg_temp", False)}
    assert (
        query(
            database,
            "SELECT proname FROM pg_proc WHERE pronamespace = 'embedded'::regnamespace"
            "   AND has_function_privilege('public', oid, 'EXECUTE')",
        )
        == []
    )


def test_the_controllers_calls_are_refused_in_words(application: Application) -> None:
    plane = EmbeddedDataPlane(application.url)
    with pytest.raises(Terminal, match="permission denied"):
        plane.segment_state("segment://t/n/x/0000-ffff-0")
    plane.close()
