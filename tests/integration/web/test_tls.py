"""A worker with a certificate is served over HTTPS, and tells others so."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from controller.devstack.serving import SECRET, serving_leader, token_for
from controller.domain.errors import InvalidInput
from controller.settings import Settings
from controller.web.server import WebServer
from tests.support.bench import Bench
from tests.support.certificates import Authority


def test_with_a_certificate_it_is_https_and_nothing_else(database: str, tmp_path: Path) -> None:
    bench = Bench(database)
    bench.topic_with(segments=1)
    authority = Authority(tmp_path)
    made = authority.issue("worker")
    layout = "/api/v1/topics/acme/shop/orders/layout"
    headers = {"Authorization": f"Bearer {token_for()}"}
    with serving_leader(database, serve_cert_file=str(made.cert), serve_key_file=str(made.key)) as address:
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        answer = httpx.get(f"{address}{layout}", headers=headers, verify=trusting)
        assert answer.json()["leader"] == address
        assert address.startswith("https://")
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            httpx.get(f"{address}{layout}", headers=headers)
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{address}{layout}".replace("https", "http"), headers=headers)
    bench.close()


def test_half_of_it_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    made, other = Authority(tmp_path / "a").issue("worker"), Authority(tmp_path / "b").issue("worker")
    for key, said in (
        (None, "go together"),
        (str(tmp_path / "none"), "cannot be used"),
        (str(other.key), "cannot be used"),
    ):
        with pytest.raises(InvalidInput, match=said):
            WebServer(Settings(serve_cert_file=str(made.cert), serve_key_file=key), SECRET)
