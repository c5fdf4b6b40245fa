"""Posting to Airflow over HTTP: logins, an unknown asset, and answers that are none. The server is a stand-in."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from controller.domain.errors import Retryable
from controller.services.asset_events import AirflowLogin, AirflowRest
from controller.services.asset_events import airflow as airflow_module
from tests.support.forward_proxy import forward_proxy

PASSWORD = "s3cret"
KNOWN = [{"id": 3, "name": "cleave_layout_of_somebody"}, {"id": 7, "name": "cleave_layout"}]


class Airflow:
    """Answers as Airflow does; tokens are good until `expire`."""

    def __init__(self) -> None:
        self.assets: list[dict[str, Any]] = list(KNOWN)
        self.events: list[dict[str, Any]] = []
        self.lookups = self.logins = 0
        self.redirects = False
        self.page: str | None = None
        """What something in between answers everything with, in place of Airflow."""
        self.knows_partitions = True

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any]:
        """Status and document."""
        if self.redirects:
            return 302, {}
        if path == "/auth/token":
            self.logins += 1
            is_right = body == {"username": "ann", "password": "secret"}
            return (201, {"access_token": f"token-{self.logins}"}) if is_right else (401, {})
        if token not in ("Bearer given", f"Bearer token-{self.logins}"):
            return 401, {}
        if method == "GET":
            self.lookups += 1
            return 200, {"assets": self.assets}
        if body["asset_id"] not in {one["id"] for one in self.assets}:
            return 404, {}
        if "partition_key" in body and not self.knows_partitions:
            return 422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "partition_key"]}]}
        self.events.append(body)
        return 200, {}


@pytest.fixture
def airflow() -> Airflow:
    """What the server knows."""
    return Airflow()


@pytest.fixture
def url(airflow: Airflow) -> Iterator[str]:
    """Where it answers."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            path, token = self.path.partition("?")[0], self.headers.get("Authorization", "")
            status, document = airflow.answer(self.command, path, token, body)
            content = json.dumps(document).encode()
            if airflow.page is not None:
                status, content = 200, airflow.page.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if status == 302:
                self.send_header("Location", "http://elsewhere.invalid/")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _answer  # noqa: N815  # the library's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_an_event_names_the_asset_by_its_id_and_the_topic_as_partition(airflow: Airflow, url: str) -> None:
    assets = AirflowRest(AirflowLogin(url, token="given"))

    assert [assets.post("topic://a/b/c", {"epoch": n}) for n in (1, 2)] == [True, True]

    assert airflow.events == [
        {"asset_id": 7, "partition_key": "topic://a/b/c", "extra": {"epoch": n}} for n in (1, 2)
    ]
    assert airflow.lookups == 1


def test_no_proxy_and_no_password_of_the_environment_counts(
    airflow: Airflow, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with forward_proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("NO_PROXY", "fd00::/8")
        assert AirflowRest(AirflowLogin(url, token="given")).post("t", {})
        assert proxy.asked == []

        assert AirflowRest(AirflowLogin(url, token="given", proxy=proxy.url)).post("t", {})
        assert len(proxy.asked) == 2
        proxy.refuses = 407
        named = proxy.url.replace("//", f"//user:{PASSWORD}@")
        with pytest.raises(Retryable, match=f"through proxy {proxy.url} answered 407") as refused:
            AirflowRest(AirflowLogin(url, token="given", proxy=named)).post("t", {})
    assert PASSWORD not in repr(refused.getrepr(style="long"))
    assert len(airflow.events) == 2


def test_an_airflow_that_knows_no_partitions_gets_plain_events(airflow: Airflow, url: str) -> None:
    airflow.knows_partitions = False
    assets = AirflowRest(AirflowLogin(url, token="given"))

    assert [assets.post("topic://a/b/c", {"epoch": n}) for n in (1, 2)] == [True, True]

    assert airflow.events == [{"asset_id": 7, "extra": {"epoch": n}} for n in (1, 2)]


def test_a_token_that_ran_out_is_replaced_where_there_is_a_password(airflow: Airflow, url: str) -> None:
    assets = AirflowRest(AirflowLogin(url, username="ann", password="secret"))
    assert assets.post("t", {})
    airflow.logins += 1  # the server forgets the token it gave

    assert assets.post("t", {})
    assert len(airflow.events) == 2


def test_an_asset_that_nobody_mentions_is_not_asked_for_each_time(
    airflow: Airflow, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.assets = KNOWN[:1]
    assets = AirflowRest(AirflowLogin(url, token="given"))

    assert [assets.post("t", {}) for _ in range(3)] == [False, False, False]
    assert airflow.lookups == 1

    airflow.assets = list(KNOWN)
    now = airflow_module.time.monotonic() + airflow_module.UNKNOWN_SECONDS
    monkeypatch.setattr(airflow_module.time, "monotonic", lambda: now)
    assert assets.post("t", {})


def test_an_asset_that_got_another_id_is_looked_up_again(
    airflow: Airflow, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_module, "UNKNOWN_SECONDS", 0.0)
    assets = AirflowRest(AirflowLogin(url, token="given"))
    assert assets.post("t", {})
    airflow.assets = [{"id": 8, "name": "cleave_layout"}]

    assert [assets.post("t", {}) for _ in range(2)] == [False, True]


def test_a_key_longer_than_airflow_keeps_is_not_posted(airflow: Airflow, url: str) -> None:
    assert not AirflowRest(AirflowLogin(url, token="given")).post("t" * 251, {})
    assert airflow.lookups == 0


@pytest.mark.parametrize(
    ("login", "message"),
    [
        ({"token": "stale-secret"}, "answered 401 to GET /api/v2/assets"),
        ({"username": "ann", "password": "wrong-secret"}, "answered 401 to POST /auth/token"),
    ],
)
def test_a_refusal_names_the_call_and_no_secret(login: dict[str, str], message: str, url: str) -> None:
    given = AirflowLogin(url, **login)

    with pytest.raises(Retryable, match=message) as refused:
        AirflowRest(given).post("t", {})

    assert "secret" not in str(refused.value) + repr(given)


def test_the_token_follows_no_redirect(airflow: Airflow, url: str) -> None:
    airflow.redirects = True

    with pytest.raises(Retryable, match="answered 302"):
        AirflowRest(AirflowLogin(url, token="given")).post("t", {})


def test_nobody_at_the_address_is_told_in_one_line() -> None:
    with pytest.raises(Retryable, match=r"http://127\.0\.0\.1:9 does not answer \(ConnectionError\)"):
        AirflowRest(AirflowLogin("http://127.0.0.1:9/", token="given")).post("t", {})


@pytest.mark.parametrize("page", ["<html>Log in</html>", "[]", "{}", '"x"'])
@pytest.mark.parametrize("login", [{"token": "given"}, {"username": "ann", "password": "secret"}], ids=str)
def test_an_answer_that_is_not_airflows_is_airflow_away(
    airflow: Airflow, url: str, page: str, login: dict[str, str]
) -> None:
    """A portal in between says 200 to everything."""
    airflow.page = page
    rest = AirflowRest(AirflowLogin(url, **login))

    with pytest.raises(Retryable, match="did not answer like Airflow"):
        rest.post("t", {})
    with pytest.raises(Retryable, match="did not answer like Airflow"):
        rest.note("dag", "run", "done")
