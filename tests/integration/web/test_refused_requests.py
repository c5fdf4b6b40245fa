"""What the server refuses before anybody works on it: bodies that are too large, and addresses that it cannot be reached at."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from controller.devstack.serving import SECRET, serving_leader, token_for, token_of
from controller.domain.errors import InvalidInput
from controller.settings import Settings
from controller.web.access import Role
from controller.web.body_size import LARGEST_BODY_BYTES
from controller.web.server import WebServer
from tests.support.bench import Bench

PATH = "/api/v1/topics/acme/shop/orders/subscriptions/billing/consumers/a"


@pytest.fixture
def http(bench: Bench) -> Iterator[httpx.Client]:
    bench.topic_with(segments=1)
    with serving_leader(bench.url) as address:
        headers = {"Authorization": f"Bearer {token_for()}"}
        with httpx.Client(base_url=address, headers=headers, timeout=30.0) as http:
            yield http


def test_a_body_that_says_it_is_too_large_is_refused_unread(http: httpx.Client) -> None:
    address = http.base_url
    with socket.create_connection((address.host, address.port or 80), timeout=30) as raw:
        raw.sendall(
            f"POST {PATH} HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {LARGEST_BODY_BYTES + 1}\r\n\r\n".encode()
        )
        answer = raw.recv(65_536)  # though nothing of it was sent

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"bytes at most" in answer


def test_a_body_of_unknown_length_is_refused(http: httpx.Client) -> None:
    answer = http.post(
        PATH, content=iter([b'{"incarnation": "x"}']), headers={"Content-Type": "application/json"}
    )

    assert answer.status_code == 413
    assert json.loads(answer.content)["kind"] == "InvalidInput"


def test_a_body_of_the_largest_size_is_read(http: httpx.Client) -> None:
    body = json.dumps({"incarnation": "x"}).encode().ljust(LARGEST_BODY_BYTES)

    assert http.post(PATH, content=body, headers={"Content-Type": "application/json"}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/openapi.json/", "/api/v1/topics/acme/shop/orders/layout/", "/admin/v2/scalable/acme/shop/"]
)
def test_no_redirect_leads_where_the_request_says_its_host_is(http: httpx.Client, path: str) -> None:
    answer = http.get(path, headers={"Host": "evil.example"})

    assert answer.status_code in (400, 404)
    assert "evil.example" not in answer.text
    assert answer.json()["reason"]


def test_a_query_that_is_no_text_is_taken_as_it_is(http: httpx.Client) -> None:
    address = http.base_url
    with socket.create_connection((address.host, address.port or 80), timeout=30) as raw:
        raw.sendall(
            b"POST /api/v1/topics/acme/shop/orders/detach?a="
            b"\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            + f"Authorization: Bearer {token_of(Role.ADMIN)}\r\nContent-Length: 0\r\n\r\n".encode()
        )
        assert int(raw.recv(65_536).split()[1]) < 500


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_every_address_of_the_machine_is_no_address_to_tell_consumers(host: str) -> None:
    with pytest.raises(InvalidInput, match="CLEAVE_SERVE_URL"):
        WebServer(Settings(serve_host=host, serve_port=0), SECRET)


def test_a_host_name_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"consumers cannot be served at é\.\.x:0: "):
        WebServer(Settings(serve_host="é..x", serve_port=0), SECRET)


def test_an_address_that_somebody_has_is_said_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidInput, match="cannot be served"):
            WebServer(Settings(serve_host="127.0.0.1", serve_port=taken.getsockname()[1]), SECRET)
