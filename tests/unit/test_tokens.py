"""Tokens that no header can carry: each place that reads one refuses it in a sentence without the token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from controller.bootstrap import build_airflow_rest
from controller.client.servers import Servers
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.domain.bearer_token import bearer_token
from controller.domain.errors import InvalidInput
from controller.settings import Settings

SECRET = "eyJhbGciOi"
BROKEN = [
    f"{SECRET}\nsecond-line",
    f"{SECRET} {SECRET}",
    f"{SECRET}\x00",
    f"{SECRET}é",
    f"{SECRET}\r\nX-Role: admin",
]
URL = "http://127.0.0.1:1"


def asked_of_servers(token: str) -> None:
    servers = Servers([URL], lambda: token, call_timeout_seconds=0.2)
    try:
        servers.ask("GET", "/api/v1/topics")
    finally:
        servers.close()


def pulsar_by_file(token: str, folder: Path) -> None:
    file = folder / "token"
    file.write_text(token)
    PulsarAccess(admin_url=URL, token_file=str(file)).current_token()


def airflow(token: str) -> None:
    build_airflow_rest(Settings(database_url="postgresql://x/y", airflow_url=URL, airflow_token=token))


PLACES: dict[str, Callable[[str, Path], object]] = {
    "the client": lambda token, _: Servers([URL], token),
    "the client at each call": lambda token, _: asked_of_servers(token),
    "CLEAVE_PULSAR_TOKEN": lambda token, _: PulsarAccess(admin_url=URL, token=token),
    "CLEAVE_PULSAR_TOKEN_FILE": pulsar_by_file,
    "CLEAVE_AIRFLOW_TOKEN": lambda token, _: airflow(token),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("token", BROKEN, ids=range(len(BROKEN)))
def test_a_token_that_no_header_can_carry_is_refused_and_not_repeated(
    place: str, token: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as refused:
        PLACES[place](token, tmp_path)

    shown = repr(refused.getrepr(style="long", showlocals=False))
    assert str(refused.value).endswith("; give a token on one line")
    assert SECRET not in str(refused.value)
    assert SECRET not in shown


@pytest.mark.parametrize("text", [f"{SECRET}\n", f" {SECRET} ", f"{SECRET}\r\n"])
def test_white_space_around_a_token_is_left_out(text: str) -> None:
    assert bearer_token(text, "it") == SECRET


def test_an_empty_token_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"^CLEAVE_API_TOKEN is empty; give a token on one line$"):
        bearer_token(" \n", "CLEAVE_API_TOKEN")
