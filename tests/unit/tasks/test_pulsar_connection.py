"""A connection to Pulsar's admin API, as settings of Cleave."""

from __future__ import annotations

from typing import Any

import pytest

from controller.domain.errors import InvalidInput
from controller.tasks import pulsar_settings


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "one"}, "http://one"),
        ({"scheme": "https", "host": "one", "port": 8443}, "https://one:8443"),
        ({"host": "one, two:8081", "port": 8080}, "http://one:8080,two:8081"),
        ({"host": "[2001:db8::1]", "port": 8080}, "http://[2001:db8::1]:8080"),
        ({"host": "https://one:8443,two:8443", "port": 1}, "https://one:8443,two:8443"),
    ],
    ids=["host", "port and scheme", "several", "IPv6", "a whole address"],
)
def test_the_address_is_made_of_the_fields(fields: dict[str, Any], url: str) -> None:
    assert pulsar_settings("our_brokers", **fields) == {"pulsar_admin_url": url}


def test_extras_and_the_token_become_settings() -> None:
    extras = {"ca_file": "/etc/ca.pem", "verify_hostname": False}

    assert pulsar_settings("c", host="one", token="t", extras=extras) == {
        "pulsar_admin_url": "https://one",
        "pulsar_token": "t",
        "pulsar_ca_file": "/etc/ca.pem",
        "pulsar_verify_hostname": False,
    }


@pytest.mark.parametrize(
    ("fields", "scheme"),
    [
        ({"token": "t"}, "https"),
        ({"extras": {"token_file": "/run/token"}}, "https"),
        ({"token": "t", "scheme": "http"}, "http"),
        ({}, "http"),
    ],
)
def test_a_token_is_shown_to_nobody_on_the_way_unless_somebody_says_so(
    fields: dict[str, Any], scheme: str
) -> None:
    found = pulsar_settings("c", host="one", **fields)
    assert found["pulsar_admin_url"] == f"{scheme}://one"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "connection 'our_brokers' has no host"),
        ({"host": "one", "extras": {"tokn": "secret"}}, "unknown extras: tokn;"),
    ],
)
def test_what_cannot_serve_is_said_without_a_secret(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        pulsar_settings("our_brokers", **fields)

    assert line in str(caught.value)
    assert "secret" not in str(caught.value)
