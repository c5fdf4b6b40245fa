"""Addresses of servers as people write them."""

from __future__ import annotations

import pytest

from controller.domain.errors import InvalidInput
from controller.domain.web_address import web_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://h", "http://h"),
        ("https://h:8080/", "https://h:8080"),
        ("http://[::1]:8080/cleave-rest//", "http://[::1]:8080/cleave-rest"),
    ],
)
def test_an_address_is_returned_without_slashes_at_its_end(text: str, address: str) -> None:
    assert web_address(text, "the address") == address


@pytest.mark.parametrize(
    "text",
    [
        "http://h ",
        " http://h",
        "http://h:8080\n",
        "http://h h",
        "http://h/\ta",
        "\0http://h",
        "http://h\u00a0",
    ],
)
def test_an_address_with_white_space_is_refused(text: str) -> None:
    """`urlsplit` removes some of it; the HTTP client would fail at the first request."""
    with pytest.raises(InvalidInput, match="the address is not the address of a server"):
        web_address(text, "the address")


@pytest.mark.parametrize("text", ["http://h?", "http://h/?", "http://h#", "http://h?a=b", "http://u:p@h"])
def test_an_address_with_more_than_an_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="the address contains a user or a query"):
        web_address(text, "the address")
