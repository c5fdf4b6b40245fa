"""Long computations run beside the server: whoever asks for them, sessions and other operators' acts are answered meanwhile."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.devstack.serving import serving_leader, token_for, token_of
from controller.landing.history import RateHistory
from controller.web.access import Role
from controller.web.computing_limits import AT_ONCE, MOST_WAITING
from tests.support.asking import bearer
from tests.support.bench import Bench
from tests.support.recorded import keep_rates
from tests.support.reports import milliseconds
from tests.support.waiting import wait_until

SEGMENTS = 2

TOPIC = "/api/v1/topics/acme/shop/orders"
BACKTESTS = "/api/v1/backtests/topics/acme/shop/orders"
SINCE = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
"""In the time to come, since nothing is recorded of a topic before it is there."""
OPERATORS = 8
DRY_RUN = "?dry_run=true"


@pytest.fixture
def address(bench: Bench, tmp_path: Path) -> Iterator[str]:
    """A server with a history of an hour's load."""
    history = RateHistory(f"{tmp_path / 'landing'}-history")
    for minute in range(1, 61):
        rate = 22_000.0 if 20 < minute < 40 else 2_000.0
        keep_rates(
            history, milliseconds(SINCE) + minute * 60_000, {(bench.topic_id, one): rate for one in (0, 1)}
        )
    with serving_leader(bench.url, landing_url=str(tmp_path / "landing")) as address:
        yield address


@dataclass(frozen=True)
class Answer:
    """Of a backtest; `status` 0: nobody waited for it."""

    status: int
    again_seconds: str | None
    document: Any


class Operator:
    """One with a name, and connections of their own."""

    def __init__(self, address: str, name: str) -> None:
        self._headers = bearer(token_of(Role.OPERATOR, "acme/shop", subject=name))
        self.http = httpx.Client(base_url=address, headers=self._headers, timeout=60.0)
        self._connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=90.0)

    def backtest(self, days: float, query: str = "") -> Answer:
        """Of a few policies over so many days each."""
        said = {
            "since": SINCE.isoformat(),
            "until": (SINCE + timedelta(days=days)).isoformat(),
            "policies": ["pip483", "adaptive", "adaptive:target_use=0.7"],
        }
        headers = {**self._headers, "Content-Type": "application/json"}
        try:
            self._connection.request("POST", f"{BACKTESTS}{query}", json.dumps(said), headers)
            answer = self._connection.getresponse()
            return Answer(answer.status, answer.getheader("Retry-After"), json.loads(answer.read()))
        except (OSError, http.client.HTTPException):
            return Answer(0, None, None)

    def give_up(self) -> None:
        """Hang up, whatever is under way."""
        if self._connection.sock is not None:
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.http.close()


def computing() -> set[int]:
    """The children of this process, which serves, that wait for work or compute."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            if b"controller.services.computing.child_process" in command:
                found.add(int(child))
    return found


def test_many_backtests_keep_nobody_else_waiting(bench: Bench, address: str) -> None:
    with ExitStack() as ends:
        pool = ends.enter_context(ThreadPoolExecutor(OPERATORS))
        operators = [Operator(address, f"operator-{number}") for number in range(OPERATORS)]
        for one in operators:
            ends.callback(one.give_up)
        asked: list[Future[Answer]] = [pool.submit(one.backtest, 66, DRY_RUN) for one in operators]
        too_many = OPERATORS - AT_ONCE - MOST_WAITING
        wait_until(lambda: sum(one.done() for one in asked) >= too_many)
        wait_until(lambda: len(computing()) == AT_ONCE)

        other = Operator(address, "other")
        ends.callback(other.give_up)
        acts = [
            other.http.post(f"{TOPIC}/split", json={"segment_id": 0}, params={"dry_run": "true"})
            for _ in range(5)
        ]
        session = httpx.post(
            f"{address}{TOPIC}/subscriptions/billing/consumers/a",
            json={"incarnation": "1"},
            headers=bearer(token_for()),
            timeout=60.0,
        )
        look = other.http.get(f"{TOPIC}/layout")
        answered = [one.result() for one in asked if one.done()]

        assert {one.status_code for one in acts} == {200}
        assert (session.status_code, look.status_code) == (200, 200)
        assert [one.status for one in answered] == [429] * too_many  # no backtest has ended yet
        for refusal in answered:
            assert refusal.document["kind"] == "LimitReached"
            assert int(refusal.again_seconds or 0) > 0
        assert len(computing()) == AT_ONCE

        for one in operators:  # all give up
            one.give_up()
        wait_until(lambda: not computing())

    wait_until(lambda: len(_audited(bench)) == OPERATORS)
    assert {dry_run for _, dry_run in _audited(bench)} == {True}
    assert [status for status, _ in _audited(bench)].count(429) == too_many


def _audited(bench: Bench) -> list[tuple[int, bool]]:
    return [
        (int(status), bool(dry_run))
        for status, dry_run in bench.rows(
            "SELECT status, dry_run FROM inspect.audit WHERE act = 'backtests_run'"
        )
    ]


def test_a_subject_computes_one_thing_at_a_time_and_its_turn_ends_with_its_client(address: str) -> None:
    first, second = Operator(address, "ada"), Operator(address, "ada")
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(first.backtest, 66)
        wait_until(computing)
        refused = second.backtest(0.02)
        assert not under_way.done()
        first.give_up()

    assert (refused.status, refused.document["kind"]) == (429, "LimitReached")
    assert "ada" in refused.document["reason"]
    wait_until(lambda: second.backtest(0.02).status == 200)
    second.give_up()


def test_small_backtests_use_a_process_again_and_are_kept(bench: Bench, address: str) -> None:
    ada = Operator(address, "ada")
    for _ in range(3):
        assert ada.backtest(0.02).status == 200
    processes = computing()
    assert ada.backtest(0.02, DRY_RUN).status == 200
    assert computing() == processes
    assert len(processes) == 1
    assert os.getpid() not in processes
    assert bench.rows("SELECT state, count(*) FROM inspect.backtest_runs GROUP BY state") == [("done", 3)]
    ada.give_up()
