"""What a client does that holds no token, or a valid one and ill will: raw sockets against a real server."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx
import pytest

from controller.client.servers import Servers
from controller.client.session import Session
from controller.devstack.serving import SECRET, client_of, serving_leader, token_for, token_of
from controller.domain.errors import StoreUnavailable
from controller.web import access, connection_limits, route_rights, server
from controller.web.access import Role
from controller.web.body_size import LARGEST_BODY_BYTES
from controller.web.connection_limits import Awaited
from tests.support.asking import bearer
from tests.support.bench import Bench
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

SEGMENTS = 1

TOPIC = "/api/v1/topics/acme/shop/orders"
CONSUMER = f"{TOPIC}/subscriptions/billing/consumers/a"
SOON_SECONDS = 0.3
PATIENCE_SECONDS = 60.0
OTHER_HOST = "127.0.0.2"


class RawConnection:
    """A connection, and bytes."""

    def __init__(self, address: str, host: str = "127.0.0.1") -> None:
        url = httpx.URL(address)
        self.socket = socket.create_connection(
            (url.host, url.port), PATIENCE_SECONDS, source_address=(host, 0)
        )

    def send(self, data: bytes) -> RawConnection:
        """Itself. A server that has hung up meanwhile is heard of when the answer is read."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)
        return self

    def answer(self) -> tuple[int, dict[str, str]]:
        """The status and the document of an answer after which the server hangs up."""
        head, _, body = self.rest().partition(b"\r\n\r\n")
        assert b"\r\nconnection: close" in head.lower()
        return int(head.split()[1]), json.loads(body)

    def rest(self) -> bytes:
        """All that comes until the server hangs up."""
        said = b""
        while True:
            try:
                more = self.socket.recv(65_536)
            except ConnectionResetError:
                return said
            if not more:
                return said
            said += more

    @property
    def is_open(self) -> bool:
        """Whether the server has not hung up."""
        self.socket.setblocking(False)
        try:
            return self.socket.recv(1) != b""
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        finally:
            self.socket.settimeout(PATIENCE_SECONDS)


@pytest.fixture
def address(bench: Bench) -> Iterator[str]:
    with serving_leader(bench.url, serve_connections=16) as address:
        yield address


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    """What is opened is closed."""
    with ExitStack() as ends:
        yield ends


def raw(ends: ExitStack, address: str, host: str = "127.0.0.1") -> RawConnection:
    opened = RawConnection(address, host)
    ends.callback(opened.socket.close)
    return opened


def request(line: str, *headers: str) -> bytes:
    return "\r\n".join([line, "Host: worker", *headers, "", ""]).encode()


def half_a_body(token: str | None = None) -> bytes:
    sent = [] if token is None else [f"Authorization: Bearer {token}"]
    head = request(f"POST {CONSUMER} HTTP/1.1", *sent, "Content-Type: application/json", "Content-Length: 10")
    return head + b"{"


class TestWithoutAToken:
    def test_the_answer_comes_before_the_body(self, address: str, ends: ExitStack) -> None:
        said = raw(ends, address).send(half_a_body()).socket.recv(65_536)

        assert said.startswith(b"HTTP/1.1 401 ")
        assert b"no token" in said

    def test_no_slot_is_held_by_requests_whose_body_does_not_come(
        self, address: str, ends: ExitStack
    ) -> None:
        for _ in range(100):
            raw(ends, address).send(half_a_body())

        answer = httpx.post(f"{address}{CONSUMER}", json={"incarnation": "1"}, headers=bearer(token_for()))

        assert answer.status_code == 200

    def test_a_nested_body_is_not_looked_at(self, address: str) -> None:
        nested = b"[" * 100_000
        as_json = {"Content-Type": "application/json"}

        assert httpx.post(f"{address}{CONSUMER}", content=nested, headers=as_json).status_code == 401
        with_token = httpx.post(
            f"{address}{CONSUMER}", content=nested, headers={**as_json, **bearer(token_for())}
        )
        assert with_token.status_code == 400
        assert "nested too deeply" in with_token.json()["reason"]

    @pytest.mark.parametrize("depth", [32, 400, 800, 950, 990])
    @pytest.mark.parametrize(
        "path",
        ["/api/v1/policies/cluster", f"{TOPIC}/candidate", "/api/v1/backtests/topics/acme/shop/orders"],
    )
    def test_what_is_nested_where_anything_may_stand_is_refused(
        self, address: str, path: str, depth: int
    ) -> None:
        value = '{"a": ' * depth + "1" + "}" * depth
        nested = f'{{"parameters": {{"max_segments": {value}}}, "policies": {value}}}'

        answer = httpx.post(
            f"{address}{path}",
            content=nested,
            headers={"Content-Type": "application/json", **bearer(token_of(Role.ADMIN))},
        )

        assert answer.status_code == 400
        assert answer.json()["reason"]

    def test_the_rest_of_a_refused_body_leaves_the_connection_usable(
        self, address: str, ends: ExitStack
    ) -> None:
        connection = raw(ends, address).send(half_a_body())
        assert connection.socket.recv(65_536).startswith(b"HTTP/1.1 401 ")

        connection.send(b'"a": 123}').send(request("GET /openapi.json HTTP/1.1", "Connection: close"))

        assert connection.rest().startswith(b"HTTP/1.1 200 ")

    def test_many_connections_of_one_address_disconnect_each_other_only(
        self, bench: Bench, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "MOST_WITHOUT_REQUEST", 20)
        with serving_leader(bench.url) as address:
            honest = raw(ends, address).send(b"GET /openapi.json HTTP/1.1\r\n")

            flood = [raw(ends, address, OTHER_HOST).send(b"GET / HT") for _ in range(60)]

            wait_until(lambda: not any(one.is_open for one in flood[:40]), message="the oldest are gone")
            assert all(one.is_open for one in flood[45:])
            honest.send(b"Host: worker\r\nConnection: close\r\n\r\n")
            assert honest.rest().startswith(b"HTTP/1.1 200 ")


class TestSizes:
    @pytest.mark.parametrize(
        ("sent", "status"),
        [
            (request("GET /openapi.json?" + "a" * 9_000 + " HTTP/1.1"), 414),
            (request("GET /openapi.json HTTP/1.1", "X-Long: " + "a" * 9_000), 431),
            (request("GET /openapi.json HTTP/1.0", "X-Long: " + "a" * 9_000), 431),
            (request("GET /openapi.json HTTP/1.1", "X" * 9_000 + ": a"), 431),
            (request("GET /openapi.json HTTP/1.1", *[f"X-{i}: " + "a" * 1_000 for i in range(40)]), 431),
            (request("GET /openapi.json HTTP/1.1", *[f"X-{i}: a" for i in range(10_000)]), 431),
            (b"GET /openapi.json HTTP/1.1\r\nX-Endless: " + b"a" * 10_000_000, 431),
            (b"GET /" + b"a" * 10_000_000, 414),
            (request("POST / HTTP/1.1", "Transfer-Encoding: chunked") + b"1\r\na\r\n", 413),
            (request("POST / HTTP/1.1", "Content-Length: 99999999999999999999999"), 400),
            (request("POST / HTTP/1.1", "Content-Length: " + "0" * 5_000 + "1"), 413),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400),
            (request("GET / HTTP/9.9"), 400),
            (request("CONNECT worker:80 HTTP/1.1"), 400),
            (request("GET /openapi.json HTTP/1.1", "No colon"), 400),
        ],
        ids=lambda value: value if isinstance(value, int) else value[:60].decode("latin-1"),
    )
    def test_what_is_too_large_or_no_http_is_refused_with_a_reason(
        self, address: str, ends: ExitStack, sent: bytes, status: int
    ) -> None:
        found, document = raw(ends, address).send(sent).answer()

        assert found == status
        assert document["kind"] == "InvalidInput"
        assert document["reason"]

    def test_what_nginx_takes_is_taken(self, address: str, ends: ExitStack) -> None:
        large = [f"X-{i}: " + "a" * 7_000 for i in range(4)]
        sent = request("GET /openapi.json HTTP/1.1", "Connection: close", *large)

        assert raw(ends, address).send(sent).rest().startswith(b"HTTP/1.1 200 ")

    def test_a_head_may_come_in_many_pieces(self, address: str, ends: ExitStack) -> None:
        connection = raw(ends, address)
        for byte in request("GET /openapi.json HTTP/1.1", "Connection: close"):
            connection.send(bytes([byte]))

        assert connection.rest().startswith(b"HTTP/1.1 200 ")

    def test_some_requests_may_wait_on_a_connection_and_not_thousands(
        self, address: str, ends: ExitStack
    ) -> None:
        some = raw(ends, address).send(
            request("GET /nothing HTTP/1.1") * 9 + request("GET / HTTP/1.1", "Connection: close")
        )
        assert some.rest().count(b"HTTP/1.1 404 ") == 10

        thousands = raw(ends, address).send(request("GET /nothing HTTP/1.1") * 5_000).rest()
        assert thousands.count(b"HTTP/1.1 404 ") < 5_000

    @pytest.mark.parametrize(
        "refused",
        [
            request("GET / HTTP/1.1", "X-Long: " + "a" * 9_000),
            request("POST / HTTP/1.1", "Transfer-Encoding: chunked"),
            b"\x16\x03\x01 no request",
        ],
        ids=["head", "body", "no HTTP"],
    )
    def test_a_refusal_is_not_the_answer_to_the_request_before(
        self, address: str, ends: ExitStack, refused: bytes
    ) -> None:
        """A client reads answers in the order of its requests: it would take the first one for refused, though it is performed."""
        said = raw(ends, address).send(request("GET /openapi.json HTTP/1.1") + refused).rest()

        assert said == b""

    def test_a_request_beyond_those_that_may_wait_is_not_answered(
        self, address: str, ends: ExitStack
    ) -> None:
        most = 1 + connection_limits.MOST_PIPELINED
        said = raw(ends, address).send(request("GET /nothing HTTP/1.1") * (most + 1)).rest()

        assert said == b""


class TestTime:
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for part in Awaited:
            monkeypatch.setitem(connection_limits.SECONDS, part, SOON_SECONDS)

    def test_a_head_that_comes_byte_by_byte_is_given_up(self, address: str, ends: ExitStack) -> None:
        connection = raw(ends, address).send(b"GET / HTTP/1.1\r\n")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while connection.is_open and time.monotonic() < deadline:
            connection.send(b"a")

        assert time.monotonic() < deadline

    def test_a_head_that_does_not_end_is_told_so(self, address: str, ends: ExitStack) -> None:
        status, document = raw(ends, address).send(b"GET / HTTP/1.1\r\nHost: wor").answer()

        assert status == 408
        assert "head of the request took longer" in document["reason"]

    def test_a_body_that_does_not_end_is_told_so_and_its_slot_is_free(
        self, address: str, ends: ExitStack
    ) -> None:
        waiting = [raw(ends, address).send(half_a_body(token_for())) for _ in range(4)]

        for one in waiting:
            status, document = one.answer()
            assert status == 408
            assert "body of the request took longer" in document["reason"]
        assert (
            httpx.post(
                f"{address}{CONSUMER}", json={"incarnation": "1"}, headers=bearer(token_for())
            ).status_code
            == 200
        )

    @pytest.mark.parametrize("sent", [b"", b"\r\n"], ids=["nothing", "empty lines"])
    def test_a_connection_without_a_request_is_closed(
        self, address: str, ends: ExitStack, sent: bytes
    ) -> None:
        connection = raw(ends, address)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while connection.is_open and time.monotonic() < deadline:
            connection.send(sent)

        assert time.monotonic() < deadline

    def test_an_answer_that_is_not_read_is_dropped(
        self, address: str, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection_limits, "UNREAD_SECONDS", SOON_SECONDS)
        connection = raw(ends, address)
        connection.socket.settimeout(SOON_SECONDS)
        is_dropped = False
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_dropped and time.monotonic() < deadline:
            try:
                connection.socket.sendall(request("GET /openapi.json HTTP/1.1"))
            except TimeoutError:
                continue
            except OSError:
                is_dropped = True

        assert is_dropped

    def test_a_tls_handshake_that_does_not_come_is_given_up(
        self, bench: Bench, ends: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "_HANDSHAKE_SECONDS", SOON_SECONDS)
        made = Authority(tmp_path).issue("worker")
        with serving_leader(
            bench.url, serve_cert_file=str(made.cert), serve_key_file=str(made.key)
        ) as address:
            assert raw(ends, address).rest() == b""


class TestWithAToken:
    @pytest.mark.parametrize(
        "item",
        [b"[" * 26 + b"]" * 26, b'{"a":' * 26 + b"1" + b"}" * 26, b"1"],
        ids=["lists", "objects", "numbers"],
    )
    def test_a_body_of_too_many_values_is_not_decoded(
        self, address: str, item: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decoded: list[bytes] = []
        monkeypatch.setattr(route_rights, "_decoded", decoded.append)
        items = b",".join([item] * (4_000_000 // (len(item) + 1)))

        answer = httpx.post(
            f"{address}{CONSUMER}/released",
            content=b'{"incarnation": "1", "buckets": [' + items + b"]}",
            headers={"Content-Type": "application/json", **bearer(token_for())},
        )

        assert answer.status_code == 400
        assert "send fewer values" in answer.json()["reason"]
        assert decoded == []

    def test_bodies_that_never_end_leave_memory_for_other_subjects(
        self, address: str, ends: ExitStack
    ) -> None:
        def arriving(token: str) -> tuple[RawConnection, bytes]:
            """A connection that announces a body, and the status of the answer: 100 if the body is awaited."""
            head = request(
                f"POST {CONSUMER}/released HTTP/1.1",
                f"Authorization: Bearer {token}",
                "Content-Type: application/json",
                f"Content-Length: {LARGEST_BODY_BYTES}",
                "Expect: 100-continue",
            )
            connection = raw(ends, address).send(head)
            return connection, connection.socket.recv(65_536)[9:12]

        greedy = [arriving(token_for()) for _ in range(5)]

        assert [status for _, status in greedy] == [b"100"] * 4 + [b"503"]
        assert arriving(access_token("other"))[1] == b"100"
        small = httpx.post(f"{address}{CONSUMER}", json={"incarnation": "1"}, headers=bearer(token_for()))
        assert small.status_code == 200
        greedy[0][0].socket.close()
        wait_until(lambda: arriving(token_for())[1] == b"100", message="there is room again")

    def test_the_largest_release_is_not_too_large(self, address: str) -> None:
        most = 65_536
        buckets = [{"segment_id": most + i, "bucket_start": i, "generation": most} for i in range(most)]
        with httpx.Client(base_url=address, headers=bearer(token_for()), timeout=PATIENCE_SECONDS) as http:
            assert http.post(CONSUMER, json={"incarnation": "1"}).status_code == 200
            answer = http.post(f"{CONSUMER}/released", json={"incarnation": "1", "buckets": buckets})

        assert answer.status_code == 204

    def test_watches_leave_room_for_sessions_and_for_other_subjects(
        self, address: str, ends: ExitStack
    ) -> None:
        greedy, other = bearer(token_for()), bearer(access_token("other"))
        http = ends.enter_context(httpx.Client(base_url=address, timeout=PATIENCE_SECONDS))

        def watching(headers: dict[str, str]) -> httpx.Response:
            return ends.enter_context(http.stream("GET", f"{TOPIC}/layout/watch", headers=headers))

        assert [watching(greedy).status_code for _ in range(5)] == [200, 200, 503, 503, 503]
        refused = watching(greedy)
        assert "CLEAVE_SERVE_CONNECTIONS_OF_SUBJECT" in refused.read().decode()
        assert refused.headers["Retry-After"] == "1"
        assert watching(other).status_code == 200
        session = Session(
            ends.enter_context(closing_client(address)),
            "topic://acme/shop/orders",
            "billing",
            "a",
            on_change=lambda: None,
        )
        ends.callback(session.close)
        wait_until(lambda: session.assignment is not None, message="it has a session all the same")

    def test_what_is_full_says_so_with_the_setting(self, bench: Bench, ends: ExitStack) -> None:
        with serving_leader(bench.url, serve_connections=2, serve_connections_of_subject=2) as address:
            http = ends.enter_context(httpx.Client(base_url=address, timeout=PATIENCE_SECONDS))
            with http.stream("GET", f"{TOPIC}/layout/watch", headers=bearer(token_for())) as watched:
                assert watched.status_code == 200
                with closing_client(address) as servers, pytest.raises(StoreUnavailable, match="already"):
                    servers.ask("GET", f"{TOPIC}/layout")
            wait_until(
                lambda: http.get(f"{TOPIC}/layout", headers=bearer(token_for())).status_code == 200,
                message="there is room again",
            )


def test_heartbeats_go_on_while_others_take_what_they_can(bench: Bench, ends: ExitStack) -> None:
    """Watches of many subjects, half bodies with a token, and connections without one; for several silences."""
    with serving_leader(bench.url, serve_connections=16, consumer_grace_seconds=4.0) as address:
        session = Session(
            ends.enter_context(closing_client(address)),
            "topic://acme/shop/orders",
            "billing",
            "a",
            on_change=lambda: None,
        )
        ends.callback(session.close)
        wait_until(lambda: session.assignment is not None, message="it has a session")
        first = session.assignment
        until = time.monotonic() + 3 * session._silent_seconds
        tokens, refused = [access_token(f"app-{i}") for i in range(16)], 0
        while time.monotonic() < until:
            for token in tokens:
                watch = request(f"GET {TOPIC}/layout/watch HTTP/1.1", f"Authorization: Bearer {token}")
                answered = raw(ends, address).send(watch).socket.recv(12)
                refused += answered.endswith(b"503")
                raw(ends, address).send(half_a_body(token))
                raw(ends, address).send(b"GET / HTTP")
            assert session.is_current
        assert refused  # the worker was as full as it may be
        assert session.assignment == first


def access_token(subject: str) -> str:
    return access.sign(SECRET, ["topic://*"], 3600.0, subject=subject)


def closing_client(address: str) -> closing[Servers]:
    return closing(client_of(address))
