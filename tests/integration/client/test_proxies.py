"""A client of the workers goes through the proxy that it is given, and through no proxy of the environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from controller.client.servers import Servers
from controller.devstack.serving import serving_leader, token_for, token_of
from controller.domain.errors import StoreUnavailable, Terminal
from controller.web.access import Role
from tests.support.bench import Bench
from tests.support.command_line import CommandLine
from tests.support.forward_proxy import ForwardProxy, forward_proxy

TOPIC = "/api/v1/topics/acme/shop/orders"
PASSWORD = "s3cret-of-the-proxy"
VARIABLES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@pytest.fixture
def proxy() -> Iterator[ForwardProxy]:
    with forward_proxy() as proxy:
        yield proxy


@pytest.fixture
def leader(bench: Bench) -> Iterator[str]:
    bench.topic_with(segments=1)
    with serving_leader(bench.url) as address:
        yield address


@pytest.fixture
def for_the_internet(proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch) -> ForwardProxy:
    """The environment names it for every address but ranges of IPv6."""
    for name in VARIABLES:
        monkeypatch.setenv(name, proxy.url)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "fd00::/8,10.0.0.0/8,.internal")
    return proxy


def layout(servers: Servers) -> int:
    return len(servers.ask("GET", f"{TOPIC}/layout")["segments"])


def test_a_proxy_of_the_environment_does_not_count(leader: str, for_the_internet: ForwardProxy) -> None:
    with closing(Servers([leader], token_for())) as servers:
        assert layout(servers) == 1
        with servers.events(f"{TOPIC}/layout/watch", query={}, silent_seconds=30.0) as feed:
            assert next(iter(feed)).event

    assert for_the_internet.asked == []


def test_a_proxy_that_is_given_is_used(leader: str, proxy: ForwardProxy) -> None:
    with closing(Servers([leader], token_for(), proxy=proxy.url)) as servers:
        assert layout(servers) == 1

    assert proxy.asked == [f"GET {leader}{TOPIC}/layout"]


@pytest.mark.parametrize("status", [407, 502])
def test_an_answer_of_the_proxy_names_it_without_its_password(
    leader: str, proxy: ForwardProxy, status: int
) -> None:
    proxy.refuses = status
    named = proxy.url.replace("//", f"//user:{PASSWORD}@")
    with (
        closing(Servers([leader], token_for(), proxy=named)) as servers,
        pytest.raises(Terminal if status < 500 else StoreUnavailable) as refused,
    ):
        layout(servers)

    assert f"through proxy {proxy.url} answered {status}" in str(refused.value)
    assert PASSWORD not in repr(refused.getrepr(style="long"))


def test_a_proxy_that_does_not_answer_is_named(leader: str) -> None:
    away = f"http://user:{PASSWORD}@127.0.0.1:9"
    with (
        closing(Servers([leader], token_for(), proxy=away)) as servers,
        pytest.raises(StoreUnavailable, match=r"through proxy http://127\.0\.0\.1:9: ") as refused,
    ):
        layout(servers)

    assert PASSWORD not in repr(refused.getrepr(style="long"))


def test_a_command_goes_through_the_proxy_of_its_setting(
    leader: str,
    for_the_internet: ForwardProxy,
    bench: Bench,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLEAVE_API_URL", leader)
    monkeypatch.setenv("CLEAVE_API_TOKEN", token_of(Role.READER))
    cleave = CommandLine(bench.url, capsys)
    assert len(cleave.json("topics", "list")) == 1
    assert for_the_internet.asked == []

    monkeypatch.setenv("CLEAVE_API_PROXY", for_the_internet.url)
    assert len(cleave.json("topics", "list")) == 1
    assert for_the_internet.asked
    assert all(leader in line for line in for_the_internet.asked)
