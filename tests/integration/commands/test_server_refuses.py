"""What goes wrong between a command and a real `cleave serve` is one line and an exit code, as beside the database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from controller.actions.wait_for_operation import run_to_its_end
from controller.bootstrap import application
from controller.client.servers import Servers
from controller.commands import http_calls
from controller.devstack.serving import SECRET, token_for, token_of
from controller.domain.errors import StoreRefused, StoreUnavailable
from controller.settings import Settings
from controller.web import access
from controller.web.access import Role
from tests.integration.commands.test_cli import completed
from tests.support.command_line import CommandLine
from tests.support.over_http import OverHttp
from tests.support.relay import Relay
from tests.support.waiting import wait_until

SPLIT = ("segments", "split", "acme/shop/orders", "0")


def expired() -> str:
    return access.sign(SECRET, (), -120.0, role=Role.ADMIN)


def of_another_secret() -> str:
    return access.sign("x" * 40, (), 60.0, role=Role.ADMIN)


@contextmanager
def carried_out_when(database: str, cleave: CommandLine, condition: str) -> Iterator[None]:
    """Carry out the operation that meets the condition, in a thread; the block begins or changes the operation."""
    found = f"SELECT operation_id FROM cleave.operation WHERE {condition}"

    def carry_out() -> None:
        wait_until(lambda: cleave.column(found), message="there is such an operation")
        with application(Settings(database_url=database)) as app:
            run_to_its_end(app, cleave.column(found)[0], 30.0)

    runner = threading.Thread(target=carry_out)
    runner.start()
    yield
    runner.join()


def test_each_token_that_is_not_good_for_it_is_refused_with_what_to_ask_for(
    http: OverHttp, orders: str
) -> None:
    everybody = "; this call needs role reader or operator or admin"
    changers = "request a token of role operator or admin"
    for token, command, said in (
        (of_another_secret(), ("topics", "list"), "the token was not signed by this installation; requ"),
        ("no-jwt", ("topics", "list"), "the token was not signed by this installation"),
        (token_for("topic://*"), ("topics", "list"), "role client does not give the right to read"),
        (token_of(Role.READER), SPLIT, f"role reader does not give the right to operate; {changers}"),
        (
            token_of(Role.OPERATOR, "acme/stock"),
            SPLIT,
            "role operator does not include topic://acme/shop/orders",
        ),
        (token_of(Role.OPERATOR, "acme/*"), ("topics", "delete", orders, "--yes"), "right to administer"),
    ):
        http.settings["CLEAVE_API_TOKEN"] = token
        assert said in http.refused(*command, code=1), said
    http.settings["CLEAVE_API_TOKEN"] = expired()
    run_out = http.refused("topics", "list", code=75)  # a fresh token may be on its way
    assert f"the token has expired; request a new token{everybody}" in run_out


def test_the_token_of_a_file_wins_and_may_end_its_line(http: OverHttp, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{http.settings['CLEAVE_API_TOKEN']}\n")
    http.settings |= {"CLEAVE_API_TOKEN": "another", "CLEAVE_API_TOKEN_FILE": str(file)}

    assert [row["topic"] for row in http.json("topics", "list")] == [f"topic://{orders}"]


def test_a_change_whose_answer_is_lost_is_made_once(http: OverHttp, orders: str, server: str) -> None:
    at = urlsplit(server)
    with Relay(at.hostname or "", at.port or 0) as relay:
        http.settings["CLEAVE_API_URL"] = f"http://127.0.0.1:{relay.port}"
        relay.lose_answer()
        document = http.json(*SPLIT)
    http.settings["CLEAVE_API_URL"] = server

    assert (document["kind"], document["state"]) == ("split", "done")
    assert [row["kind"] for row in http.json("operations", "--topic", orders)] == ["split", "create"]


def test_an_operation_that_takes_longer_is_for_later_and_stays(
    http: OverHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker is up, and this server is asked for no wait, so that it does not carry it out."""
    monkeypatch.setattr(http_calls, "LONGEST_WAIT_SECONDS", 0.0)
    answer = http("topics", "create", "acme/shop/late", "--timeout-seconds", "0.3")

    [left] = http.json("operations", "--live")
    assert (answer.code, "intended" in answer.out) == (75, True)
    assert answer.err == (
        f"cleave: operation {left['operation_id']} (create of topic://acme/shop/late) is intended after 0.3 s; "
        "wait longer, check that a worker runs, or read `cleave operations --stuck`\n"
    )


def test_an_operation_is_asked_for_again_until_it_is_done(
    http: OverHttp, database: str, cleave: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the 60 seconds that one call may wait; here after none, and somebody else carries it out."""
    monkeypatch.setattr(http_calls, "LONGEST_WAIT_SECONDS", 0.0)

    with carried_out_when(database, cleave, "true"):
        document = http.json("topics", "create", "acme/shop/late")

    assert (document["operation_id"], document["state"]) == (1, "done")


@pytest.mark.parametrize("passes", [True, False])
def test_an_outage_while_an_operation_is_asked_for_ends_the_wait_only_if_it_lasts(
    http: OverHttp, database: str, cleave: CommandLine, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    """The command then names the operation, which goes on."""
    monkeypatch.setattr(http_calls, "LONGEST_WAIT_SECONDS", 0.0)
    ask, failures = Servers.ask, list[str]()

    def ask_in_an_outage(servers: Servers, method: str, path: str, **options: Any) -> Any:
        if path.startswith("/api/v1/operations/") and not (passes and failures):
            failures.append(path)
            raise StoreUnavailable("PostgreSQL is unreachable: gone; retry")
        return ask(servers, method, path, **options)

    monkeypatch.setattr(Servers, "ask", ask_in_an_outage)
    create = ("topics", "create", "acme/shop/late")
    if passes:
        with carried_out_when(database, cleave, "true"):
            assert http.json(*create)["state"] == "done"
    else:
        answer = http(*create, "--timeout-seconds", "0.3")
        assert (answer.code, answer.err) == (
            75,
            "cleave: the state of operation 1 is unknown: PostgreSQL is unreachable: gone; retry\n",
        )
    assert len(failures) == 1 if passes else len(failures) > 1


def test_a_refused_login_ends_the_wait_for_an_operation_at_once(
    http: OverHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_calls, "LONGEST_WAIT_SECONDS", 0.0)
    ask, failures = Servers.ask, list[str]()

    def ask_and_be_refused(servers: Servers, method: str, path: str, **options: Any) -> Any:
        if path.startswith("/api/v1/operations/"):
            failures.append(path)
            raise StoreRefused("PostgreSQL refuses the connection")
        return ask(servers, method, path, **options)

    monkeypatch.setattr(Servers, "ask", ask_and_be_refused)
    answer = http("topics", "create", "acme/shop/late", "--timeout-seconds", "5")
    assert (answer.code, answer.err, len(failures)) == (
        2,
        "cleave: the state of operation 1 is unknown: PostgreSQL refuses the connection\n",
        1,
    )


def test_a_cancelled_seek_is_asked_for_again_until_it_has_ended(
    http: OverHttp, database: str, cleave: CommandLine, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_calls, "LONGEST_WAIT_SECONDS", 0.0)
    cleave.ok("subscriptions", "create", orders, "billing")
    cleave.ok("subscriptions", "seek", orders, "billing", "latest", "--no-wait")

    with carried_out_when(database, cleave, "abort_reason IS NOT NULL"):
        [seek] = http.json("subscriptions", "cancel-seek", orders, "billing", "--reason", "the wrong one")[
            "operations"
        ]

    assert (seek["state"], "the wrong one" in seek["last_error"]) == ("aborted", True)


def test_the_shell_completes_what_the_server_has(http: OverHttp, orders: str, server: str) -> None:
    named = {name: value for name, value in http.settings.items() if name != "CLEAVE_DATABASE_URL"}
    nowhere = http.settings["CLEAVE_DATABASE_URL"]

    assert completed(nowhere, "layout", "acme/s", **named) == [orders]
    assert completed(nowhere, "policy", "get", "acme/sho", **named) == ["acme/shop", orders]
    token = {"CLEAVE_API_TOKEN": http.settings["CLEAVE_API_TOKEN"]}
    assert completed(nowhere, "--api-url", server, "layout", "acme/s", **token) == [orders]
    assert completed(nowhere, "--api-url", "http://127.0.0.1:1", "layout", "acme/s", **token) == []
