"""Readers of embedded logs across a promotion of a standby that lacks the last messages, and across a restore of a copy of the data."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence

import pytest

from controller.client.retry import retry_for
from controller.dataplane.embedded import EmbeddedDataPlane, EmbeddedLogClient
from controller.dataplane.log_client import LogMessage, LogReader, QueueReader
from controller.domain.errors import LogShortened
from controller.store.postgres.migrations import migrate
from tests.support.planes import Planes, payloads
from tests.support.replicated_postgres import ReplicatedPostgres
from tests.support.scratch import scratch

PATIENT_SECONDS = 20.0
Lose = Callable[[Callable[[], object]], None]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedPostgres]:
    with ReplicatedPostgres(scratch(tmp_path_factory, "fail-overs")) as cluster:
        yield cluster


@pytest.fixture(params=["promotion", "restore"])
def lose(request: pytest.FixtureRequest, cluster: ReplicatedPostgres) -> Lose:
    """Does something that the next primary does not have; its clients find the next primary under the same address."""

    def promotion(act: Callable[[], object]) -> None:
        cluster.add_standby(synchronous=False)
        cluster.cut_replication()
        act()
        cluster.kill_primary()
        cluster.promote()

    def restore(act: Callable[[], object]) -> None:
        backup = cluster.back_up()
        act()
        cluster.restore(backup, new_timeline=False)  # PostgreSQL itself sees no other timeline then

    return promotion if request.param == "promotion" else restore


@pytest.fixture
def planes(cluster: ReplicatedPostgres) -> Iterator[Planes]:
    name = f"logs_{secrets.token_hex(4)}"
    cluster.primary.create_database(name)
    migrate(cluster.primary_url(name))
    url = cluster.url(name)
    planes = Planes(
        EmbeddedDataPlane(url, call_timeout_seconds=PATIENT_SECONDS),
        EmbeddedLogClient(url, call_timeout_seconds=PATIENT_SECONDS),
    )
    yield planes
    planes.close()


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def read(reader: LogReader | QueueReader, count: int = 100) -> Sequence[LogMessage]:
    """A read that is repeated while connections to the lost primary are dropped."""
    return retry_for(lambda: reader.read(count), seconds=PATIENT_SECONDS)


def test_what_the_next_primary_acknowledged_is_delivered(planes: Planes, lose: Lose) -> None:
    again = [b"again %d" % number for number in range(10)]
    log, queue, plain = planes.log("s"), planes.log("s"), planes.log()
    for one in (log, queue, plain):
        planes.send(one, *numbers(0, 15))
    reader, shared, positioned = (
        planes.reader(log, "s"),
        planes.queue(queue, "s"),
        planes.reader_at(plain, None),
    )
    reader.acknowledge(planes.read(reader, 12)[-1].position)
    shared.acknowledge([one.position for one in planes.read(shared, 12)])
    planes.read(positioned, 15)

    def lost() -> None:
        for one in (log, queue, plain):
            planes.send(one, *numbers(15, 20))
        planes.read(reader, 8)
        planes.read(shared, 8)
        planes.read(positioned, 5)

    lose(lost)
    for one in (log, queue, plain):
        retry_for(lambda one=one: planes.send(one, *again), seconds=PATIENT_SECONDS)  # type: ignore[misc]

    for one in (reader, shared):
        with pytest.raises(LogShortened, match=r"position 20 of .*; reading continues at 12"):
            read(one)
        one.close()
    assert payloads(planes.reader(log, "s").read(100)) == [*numbers(12, 15), *again]
    assert payloads(planes.queue(queue, "s").read(100)) == [*numbers(12, 15), *again]
    with pytest.raises(LogShortened, match="reading continues at 15") as refused:
        planes.reader_at(plain, positioned._place.last)  # type: ignore[attr-defined]
    assert payloads(planes.reader_at(plain, refused.value.resume).read(100)) == again


def test_a_position_that_the_next_primary_has_is_gone_on_from(planes: Planes, lose: Lose) -> None:
    log = planes.log()
    planes.send(log, *numbers(0, 15))
    kept = planes.logs.locate(log, None)

    lose(lambda: planes.send(log, *numbers(15, 20)))
    retry_for(lambda: planes.send(log, b"again"), seconds=PATIENT_SECONDS)

    assert payloads(planes.reader_at(log, kept).read(100)) == [b"again"]
