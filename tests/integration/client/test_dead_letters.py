"""Messages that cannot be handled go to a dead-letter log in the order of their keys, and come back from there."""

from __future__ import annotations

import base64
import secrets
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from controller.client.dead_letters import DeadLetter, DeadLetterLog, reading_dead_letters
from controller.client.keyed_work import KeyedWork
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.embedded import EmbeddedLogClient
from controller.dataplane.log_client import LogMessage, OutgoingMessage
from controller.devstack.postgres import PostgresServer
from controller.devstack.serving import client_of
from controller.domain.errors import DataPlaneUnavailable
from tests.support.bench import TOPIC, Bench
from tests.support.command_line import CommandLine
from tests.support.joined import send_numbers
from tests.support.waiting import wait_until

LETTERS = "dead-letters://acme/shop/orders/billing"
KEYS = [f"key-{i}" for i in range(10)]
BAD = KEYS[:3]


class RecordingHandler:
    """Refuses the numbers 1 and 2 of some keys."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.tries: list[tuple[str, int]] = []
        self.is_mended = False

    def handle(self, message: LogMessage) -> None:
        one = (message.key or b"").decode(), int(message.payload)
        self.tries.append(one)
        if one[0] in BAD and one[1] in (1, 2) and not self.is_mended:
            raise ValueError(f"no account {one[0]}")
        self.done.append(one)

    def numbers(self, key: str) -> list[int]:
        return [number for one, number in self.done if one == key]


@pytest.fixture
def handler() -> RecordingHandler:
    return RecordingHandler()


@pytest.fixture
def work(bench: Bench, servers: Servers, handler: RecordingHandler) -> Iterator[KeyedWork]:
    with (
        StreamConsumer(servers, bench.logs, TOPIC, "billing", "a", batch_messages=7) as consumer,
        KeyedWork(
            consumer, handler.handle, threads=4, first_retry_seconds=0.01, longest_retry_seconds=0.02,
            max_deliveries=3, dead_letters=bench.logs,
        ) as work,
    ):  # fmt: skip
        yield work


send = partial(send_numbers, keys=KEYS)


def turn_until(predicate: Callable[[], object], work: KeyedWork) -> None:
    def turn() -> object:
        work.turn(0.02)
        return predicate()

    wait_until(turn)


def letters(bench: Bench, count: int) -> list[DeadLetter]:
    """So many, and no more; not acknowledged."""
    with reading_dead_letters(bench.logs, LETTERS) as reader:
        return reader.read(count + 1, timeout_seconds=0.2)


def test_what_fails_too_often_is_put_away_in_the_order_of_its_key_and_the_key_goes_on(
    bench: Bench, producer: Producer, handler: RecordingHandler, work: KeyedWork
) -> None:
    send(producer, 0, 1, 2, 3)
    turn_until(lambda: bench.unread("billing") == 0, work)

    for key in KEYS:
        assert handler.numbers(key) == ([0, 3] if key in BAD else [0, 1, 2, 3])
    for key in BAD:
        assert [number for one, number in handler.tries if one == key] == [0, 1, 1, 1, 2, 2, 2, 3]
    found = letters(bench, 6)
    assert len(found) == 6
    for key in BAD:
        of_key = [letter for letter in found if letter.key == key.encode()]
        assert [letter.payload for letter in of_key] == [b"1", b"2"]
        origin = of_key[0].origin
        assert origin is not None
        assert (origin.topic, origin.subscription, origin.segment_id, origin.consumer) == (
            TOPIC,
            "billing",
            0,
            "a",
        )
        assert (origin.deliveries, origin.error) == (3, f"ValueError: no account {key}")
        stored = bench.scalar("SELECT key FROM embedded.message WHERE log_offset = :o AND log_id = "
                              "(SELECT log_id FROM embedded.log WHERE name = :n)",
                              o=origin.position[1], n=bench.log_of(0))  # fmt: skip
        assert bytes(stored) == key.encode()
    rows = "SELECT count(*) FROM cleave.message_delivery"
    wait_until(lambda: bench.scalar(rows) == 0, message="what was put away is forgotten")
    bench.check_laws()  # the log is no segment's, and no orphan


def test_while_it_cannot_be_put_away_its_key_is_held_and_why_says_so(
    bench: Bench,
    producer: Producer,
    handler: RecordingHandler,
    work: KeyedWork,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send(producer, 0, 1)
    with monkeypatch.context() as away:

        def refuse(*_: object) -> None:
            raise DataPlaneUnavailable("injected: the log is away", 0.01)

        away.setattr(DeadLetterLog, "put", refuse)

        def reasons() -> str:
            return " ".join(one.reason for one in work._consumer.why())

        turn_until(
            lambda: all(
                f"ValueError: no account {key}; cannot store the message in" in reasons() for key in BAD
            ),
            work,
        )
        assert "(delivery 3: " in reasons()
        assert bench.unread("billing") >= 3
    turn_until(lambda: bench.unread("billing") == 0, work)
    assert len(letters(bench, 3)) == 3


def test_a_crash_between_putting_away_and_acknowledging_repeats_it_and_loses_nothing(
    bench: Bench, producer: Producer, servers: Servers
) -> None:
    producer.send(b"1", BAD[0])
    producer.flush()
    stored, handler = threading.Event(), RecordingHandler()
    put = DeadLetterLog.put
    with (
        pytest.MonkeyPatch.context() as patch,
        StreamConsumer(servers, bench.logs, TOPIC, "billing", "a") as consumer,
        KeyedWork(
            consumer, handler.handle, first_retry_seconds=0.01, max_deliveries=2, dead_letters=bench.logs
        ) as work,
    ):

        def put_and_die(log: DeadLetterLog, *letter: object) -> None:
            put(log, *letter)  # type: ignore[arg-type]
            stored.set()

        patch.setattr(DeadLetterLog, "put", put_and_die)
        patch.setattr(StreamConsumer, "acknowledge", lambda *_, **_how: False)
        turn_until(stored.is_set, work)
        turn_until(lambda: work.running == 0, work)
        assert bench.unread("billing") == 1

    with (
        StreamConsumer(servers, bench.logs, TOPIC, "billing", "a") as consumer,
        KeyedWork(consumer, handler.handle, max_deliveries=2, dead_letters=bench.logs) as work,
    ):
        turn_until(lambda: bench.unread("billing") == 0, work)
    assert handler.tries == [(BAD[0], 1)] * 2  # it is not handled again
    assert [letter.payload for letter in letters(bench, 2)] == [b"1", b"1"]


def test_a_token_for_another_topic_makes_no_log(bench: Bench, producer: Producer, leader: str) -> None:
    stranger = client_of(leader, topics=("topic://acme/shop/other",))
    path = "/api/v1/topics/acme/shop/orders/subscriptions/billing/consumers/a/dead-letters"
    with pytest.raises(Exception, match="does not include topic://acme/shop/orders"):
        stranger.ask("POST", path, document={"incarnation": "x"})
    assert bench.scalar("SELECT count(*) FROM embedded.log WHERE name = :name", name=LETTERS) == 0
    stranger.close()


@pytest.fixture
def login(postgres_server: PostgresServer, bench: Bench) -> Iterator[str]:
    """An application's: it may call the functions of the logs, and nothing else."""
    user = f"application_{secrets.token_hex(4)}"
    bench.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'pw' IN ROLE cleave_client")
    yield postgres_server.url(bench.url.rpartition("/")[2], user=user, password="pw")
    bench.execute(f"DROP ROLE {user}")


def test_an_application_s_own_login_and_token_are_enough(
    bench: Bench, producer: Producer, leader: str, login: str, handler: RecordingHandler
) -> None:
    send(producer, 1)
    logs, servers = EmbeddedLogClient(login), client_of(leader, topics=(TOPIC,))
    with (
        StreamConsumer(servers, logs, TOPIC, "billing", "a") as consumer,
        KeyedWork(
            consumer, handler.handle, first_retry_seconds=0.01, max_deliveries=2, dead_letters=logs
        ) as work,
    ):
        turn_until(lambda: bench.unread("billing") == 0, work)
    with reading_dead_letters(logs, LETTERS) as reader:
        found = reader.read(len(BAD))
        reader.acknowledge(found[-1])
    assert {letter.key for letter in found} == {key.encode() for key in BAD}
    assert letters(bench, 0) == []
    logs.close()
    servers.close()


def test_where_there_are_none_that_is_said(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No consumer is there, whose rows would change meanwhile."""
    monkeypatch.setenv("CLEAVE_DATABASE_URL", bench.url)
    bench.topic_with(segments=1)
    cleave = CommandLine(bench.url, capsys)

    assert "has no dead letters" in cleave.refused("dead-letters", "list", TOPIC, "billing", code=2)


def test_dead_letters_are_listed_and_put_back(
    bench: Bench,
    producer: Producer,
    handler: RecordingHandler,
    work: KeyedWork,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", bench.url)
    cleave = CommandLine(bench.url, capsys)
    send(producer, 1, 2)
    turn_until(lambda: bench.unread("billing") == 0, work)
    strangers = [OutgoingMessage(b"of another program", b"x")]
    bench.logs.append(LETTERS, strangers, producer="other", sequence=1)

    listed = cleave.json("dead-letters", "list", TOPIC, "billing")["items"]
    assert len(listed) == 7
    assert base64.b64decode(listed[0]["payload"]) == b"1"
    assert listed[0]["error"] == f"ValueError: no account {listed[0]['key']}"
    assert listed[6]["error"] is None
    assert len(cleave.json("dead-letters", "list", TOPIC, "billing", "--limit", "2")["items"]) == 2
    assert "6 dead letters" in cleave.ok(
        "dead-letters", "redrive", TOPIC, "billing", "--limit", "6", "--dry-run"
    )

    handler.done.clear()
    handler.is_mended = True
    assert cleave.json("dead-letters", "redrive", TOPIC, "billing", "--limit", "6")["left"] == 1
    turn_until(lambda: bench.unread("billing") == 0, work)
    assert {key: handler.numbers(key) for key in BAD} == {key: [1, 2] for key in BAD}
    assert len(cleave.json("dead-letters", "list", TOPIC, "billing")["items"]) == 1
    cleave.store.dispose()
