"""Tokens whose time has not come, or is over: what a worker takes, and what a client does about the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import jwt
import pytest

from controller.client.servers import Servers, topic_path
from controller.client.stream_consumer import StreamConsumer
from controller.commands import server_choice
from controller.devstack.serving import SECRET, token_for, token_of
from controller.domain.errors import AccessDenied, TokenOutOfTime
from controller.questions.topics import LIST_TOPICS
from controller.settings import Settings
from controller.web import access
from controller.web.access import Role
from tests.support.bench import Bench
from tests.support.waiting import wait_until

LEEWAY = access.CLOCK_LEEWAY_SECONDS


def token(*, issued_in: float = 0.0, life_seconds: float = 3600.0, **claims: float) -> str:
    """One signed by a clock that is so much ahead."""
    at = time.time() + issued_in
    document = {"sub": "a", "role": "client", "topics": ["topic://*"], "iat": at, "exp": at + life_seconds}
    return jwt.encode(document | claims, SECRET, algorithm="HS256")


@pytest.mark.parametrize(
    "given",
    [
        lambda: token(issued_in=LEEWAY - 10),
        lambda: token(life_seconds=10 - LEEWAY),
        lambda: token(nbf=time.time() + LEEWAY - 10),
    ],
    ids=["ahead", "run-out", "not-before"],
)
def test_a_minute_of_difference_between_clocks_does_no_harm(given: Callable[[], str]) -> None:
    assert access.read(SECRET, f"Bearer {given()}").topics == ("topic://*",)


@pytest.mark.parametrize(
    "given",
    [
        lambda: token(issued_in=LEEWAY + 60),
        lambda: token(life_seconds=-LEEWAY - 10),
        lambda: token(nbf=time.time() + LEEWAY + 60),
    ],
    ids=["ahead", "run-out", "not-before"],
)
def test_more_is_refused_for_its_time_alone(leader: str, bench: Bench, given: Callable[[], str]) -> None:
    bench.topic_with()
    with closing(Servers([leader], given())) as servers, pytest.raises(TokenOutOfTime, match="role"):
        servers.ask("GET", f"{topic_path(bench.topic_name)}/layout")


class ConsumerWithToken:
    """A consumer whose token file the test writes."""

    def __init__(self, bench: Bench, leader: str) -> None:
        self._bench, self._leader = bench, leader
        self.token, self.sent = token_for(), list[str]()
        self._ends = ExitStack()

    def start(self, patience_seconds: float) -> StreamConsumer:
        """One with so much patience, connected."""
        servers = self._ends.enter_context(closing(Servers([self._leader], self._read)))
        consumer = StreamConsumer(
            servers,
            self._bench.logs,
            self._bench.topic_name,
            "billing",
            "a",
            patience_seconds=patience_seconds,
        )
        self._ends.callback(consumer.close)
        wait_until(lambda: consumer._session.assignment is not None, message="it is told what it owns")
        return consumer

    def reconnect(self, consumer: StreamConsumer, token: str) -> None:
        """Have its stream break and that token in the file; back when the token was sent twice."""
        self.token = token
        assert consumer._session._feed is not None
        consumer._session._feed.hang_up()
        wait_until(lambda: self.sent.count(token) > 1 or consumer._session._failure, message="it tries again")

    def close(self) -> None:
        """End what was started."""
        self._ends.close()

    def _read(self) -> str:
        self.sent.append(self.token)
        return self.token


@pytest.fixture
def consuming(bench: Bench, leader: str) -> Iterator[ConsumerWithToken]:
    """A topic, and what consumes it."""
    bench.topic_with()
    consuming = ConsumerWithToken(bench, leader)
    yield consuming
    consuming.close()


@pytest.mark.parametrize("away", [{"issued_in": LEEWAY + 60.0}, {"life_seconds": -LEEWAY - 10.0}], ids=str)
def test_a_consumer_goes_on_with_a_fresh_token(
    bench: Bench, consuming: ConsumerWithToken, away: dict[str, float]
) -> None:
    consumer = consuming.start(patience_seconds=600.0)
    consuming.reconnect(consumer, token(**away))

    consuming.token = token_for()
    bench.publish(0, 3)

    wait_until(lambda: consumer.receive(timeout_seconds=0.1), message="it receives what was sent since")


def test_without_a_fresh_token_it_ends_when_its_patience_does(consuming: ConsumerWithToken) -> None:
    consumer = consuming.start(patience_seconds=0.2)
    consuming.reconnect(consumer, token(life_seconds=-LEEWAY - 10.0))

    wait_until(lambda: consumer._session._failure, message="its patience is over")
    with pytest.raises(TokenOutOfTime, match="expired"):
        consumer.receive(timeout_seconds=0.1)


def test_another_refusal_is_final_at_once(consuming: ConsumerWithToken) -> None:
    consumer = consuming.start(patience_seconds=600.0)
    consuming.reconnect(consumer, "nonsense")

    wait_until(lambda: consumer._session._failure, message="it is refused")
    with pytest.raises(AccessDenied):
        consumer.receive(timeout_seconds=0.1)


def test_a_command_reads_its_token_file_again(
    bench: Bench, leader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic_with()
    file = tmp_path / "token"
    file.write_text(token(life_seconds=-LEEWAY - 10.0))
    monkeypatch.setenv("CLEAVE_API_URL", leader)
    monkeypatch.setenv("CLEAVE_API_TOKEN_FILE", str(file))
    reading, read = server_choice._token, list[str]()

    def renewed_behind_the_first_call(settings: Settings, url: str) -> str:
        read.append(reading(settings, url))
        if len(read) > 1:  # the first time is before any call
            file.write_text(token_of(Role.READER))
        return read[-1]

    monkeypatch.setattr(server_choice, "_token", renewed_behind_the_first_call)
    topics = list(server_choice.ask(LIST_TOPICS, {}, limit=10))

    assert [one["topic"] for one in topics] == [bench.topic_name]
    assert read[0] == read[1] != read[2]
