"""What a client of the workers refuses before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from controller.client.servers import Servers, consumer_path, topic_path
from controller.domain.errors import (
    AccessDenied,
    InvalidInput,
    LimitReached,
    StoreUnavailable,
    Terminal,
    TopicNotFound,
)
from tests.support.other_servers import server_that_answers
from tests.support.scripted_broker import scripted_broker

HALF_A_PAIR = "a\ud800"


@pytest.fixture
def servers() -> Iterator[Servers]:
    """Of a worker that is not there: whatever is sent fails as unavailable."""
    servers = Servers(["http://127.0.0.1:9"], "token")
    yield servers
    servers.close()


def test_names_without_utf8_form_are_refused() -> None:
    with pytest.raises(InvalidInput, match="surrogate"):
        topic_path(f"topic://acme/shop/{HALF_A_PAIR}")
    for subscription, consumer in (("billing", HALF_A_PAIR), (HALF_A_PAIR, "c")):
        with pytest.raises(InvalidInput, match="surrogate"):
            consumer_path("topic://acme/shop/orders", subscription, consumer)


def test_texts_without_utf8_form_are_refused(servers: Servers) -> None:
    for said in ({"document": {"a": [HALF_A_PAIR]}}, {"query": {"a": HALF_A_PAIR}}):
        with pytest.raises(InvalidInput, match="no UTF-8 form"):
            servers.ask("POST", "/api/v1/topics", **said)


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("pulsar://host:6650", "'pulsar://host:6650' is not the address of a server"),
        ("127.0.0.1:8470", "'127.0.0.1:8470' is not the address of a server"),
        ("cleave", "'cleave' is not the address of a server"),
        ("http://", "'http://' is not the address of a server"),
        ("http://host:port", "'http://host:port' is not the address of a server"),
        ("pulsar://me:secret@host", "an address of a worker contains a user"),
        ("http://host:8470?token=secret", "an address of a worker contains a user or a query"),
    ],
)
def test_what_is_no_address_is_refused_before_any_call(address: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=named) as refused:
        Servers(["http://w1:8470", address], "token")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("returned", [None, b"secret", 7])
def test_a_token_function_that_returns_no_text_is_named(returned: Any) -> None:
    def give() -> str:
        return returned

    with (
        closing(Servers(["http://127.0.0.1:9"], give)) as servers,
        pytest.raises(
            InvalidInput, match=r"^the token that the function returned is a value of type \w+; give"
        ) as refused,
    ):
        servers.ask("GET", "/anything")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (
            404,
            b"<html>none</html>",
            Terminal,
            " answered 404, and is no worker of Cleave; correct the address",
        ),
        (404, b'{"reason": "no"}', Terminal, " answered 404 (no), and is no worker of Cleave"),
        (404, b"[]", Terminal, " answered 404, and is no worker of Cleave"),
        (200, b"<html>welcome</html>", StoreUnavailable, " is no worker of Cleave: "),
    ],
)
def test_another_program_at_the_address_is_named_with_the_address(
    status: int, body: bytes, kind: type[Exception], said: str
) -> None:
    with server_that_answers(status, body) as url, closing(Servers([url], "token")) as servers:
        with pytest.raises(kind) as refused:
            servers.ask("GET", "/anything")
        assert str(refused.value).startswith(f"{url}{said}")


@pytest.mark.parametrize("status", [408, 425, 429])
@pytest.mark.parametrize(("after", "delay_seconds"), [("3", 3.0), ("86400", 5.0), ("soon", 0.2)])
def test_a_server_that_refuses_for_a_time_is_asked_again_after_its_delay(
    status: int, after: str, delay_seconds: float
) -> None:
    """A proxy's limit of requests must not end a consumer's session."""
    with (
        server_that_answers(status, b"<html>slow down</html>", Retry_After=after) as url,
        closing(Servers([url, "http://127.0.0.1:9"], "token")) as servers,
    ):
        with pytest.raises(StoreUnavailable) as refused:
            servers.ask("GET", "/anything")
        assert refused.value.delay_seconds == delay_seconds
        assert str(refused.value).startswith(f"{url} answered {status}")
        assert "no worker" not in str(refused.value)


def test_a_server_that_refuses_for_a_time_is_passed_over() -> None:
    with (
        server_that_answers(429, b"") as limited,
        server_that_answers(200, b'"here"') as worker,
        closing(Servers([limited, worker], "token")) as servers,
    ):
        assert servers.ask("GET", "/anything") == "here"


def test_a_worker_that_names_its_own_limit_is_not_passed_over() -> None:
    refusal = b'{"reason": "busy", "kind": "LimitReached"}'
    with (
        server_that_answers(429, refusal, Retry_After="3") as worker,
        closing(Servers([worker, "http://127.0.0.1:9"], "token")) as servers,
        pytest.raises(LimitReached, match=r"^busy$"),
    ):
        servers.ask("GET", "/anything")


def test_a_redirect_without_a_location_counts_as_a_worker_that_cannot_respond() -> None:
    with (
        server_that_answers(307, b"") as url,
        closing(Servers([url], "token")) as servers,
        pytest.raises(StoreUnavailable, match="redirects without a Location"),
    ):
        servers.ask("GET", "/anything")


def test_a_leader_that_refuses_the_token_of_the_worker_that_named_it_is_named() -> None:
    refusal = b'{"reason": "the token was not signed by this installation", "kind": "AccessDenied"}'
    with (
        server_that_answers(401, refusal) as leader,
        server_that_answers(307, b"", Location=f"{leader}/anything") as worker,
        closing(Servers([worker], "token")) as servers,
    ):
        with pytest.raises(AccessDenied) as refused:
            servers.ask("GET", "/anything")
        assert str(refused.value) == (
            f"{leader} refused the token that {worker} had accepted: the token was not signed by this installation; "
            "check that both workers have the same CLEAVE_API_SECRET"
        )
        with (
            closing(Servers([leader], "token")) as servers,
            pytest.raises(AccessDenied, match=r"^the token was not signed by this installation$"),
        ):
            servers.ask("GET", "/anything")


def test_another_refusal_of_a_leader_is_raised_as_it_is() -> None:
    refusal = b'{"reason": "there is no topic", "kind": "TopicNotFound"}'
    with (
        server_that_answers(404, refusal) as leader,
        server_that_answers(307, b"", Location=f"{leader}/anything") as worker,
        closing(Servers([worker], "token")) as servers,
        pytest.raises(TopicNotFound, match=r"^there is no topic$"),
    ):
        servers.ask("GET", "/anything")


def test_an_error_of_a_token_function_is_raised_as_it_is() -> None:
    def give() -> str:
        raise KeyError("CLEAVE_TOKEN")

    with (
        closing(Servers(["http://127.0.0.1:9"], give)) as servers,
        pytest.raises(KeyError, match="CLEAVE_TOKEN"),
    ):
        servers.ask("GET", "/anything")


def test_a_call_tries_each_worker_although_another_call_changes_which_worker_is_first() -> None:
    calls: list[int] = []

    def call_in_between() -> str:
        calls.append(1)
        if len(calls) == 1:
            assert client.ask("GET", "/in-between") == {}
        return "token"

    with (
        server_that_answers(200, b"{}") as url,
        closing(Servers(["http://127.0.0.1:9", url], call_in_between)) as client,
    ):
        assert client.ask("GET", "/anything") == {}


def test_the_worker_that_responded_last_is_tried_first_and_the_others_after_it() -> None:
    with (
        scripted_broker() as first,
        scripted_broker() as second,
        closing(Servers([first.url, second.url], "token")) as client,
    ):
        first.behaves(first.refuses(503, "starting"))
        second.behaves(second.says(200, "second"))
        assert [client.ask("GET", "/anything") for _ in range(2)] == ["second", "second"]
        assert len(first.received) == 1

        first.behaves(first.says(200, "first"))
        second.behaves(second.refuses(503, "stopping"))
        assert client.ask("GET", "/anything") == "first"


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize(
    "call",
    [
        lambda servers: servers.ask("GET", "/anything"),
        lambda servers: servers.events("/anything", query={}, silent_seconds=5.0).__enter__(),
    ],
    ids=["ask", "events"],
)
def test_a_close_during_a_call_ends_the_call_as_closed(
    call: Callable[[Servers], object], attempt: int
) -> None:
    attempts: list[int] = []

    def close_before_the_request() -> str:
        attempts.append(1)
        if len(attempts) == attempt:
            client.close()
        return "token"

    with server_that_answers(200, b"{}") as url:
        client = Servers([*["http://127.0.0.1:9"] * (attempt - 1), url], close_before_the_request)
        with pytest.raises(Terminal, match="this client of Cleave was closed; create another client"):
            call(client)

    assert len(attempts) == attempt
    assert not client._feeds
