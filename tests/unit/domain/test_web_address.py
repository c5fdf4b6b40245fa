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


NO_ADDRESS = "the address is not the address of a server"
MORE_THAN_AN_ADDRESS = "the address contains a user or a query"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # `urlsplit` removes some white space; the HTTP client would fail at the first request.
        ("http://h ", NO_ADDRESS),
        (" http://h", NO_ADDRESS),
        ("http://h:8080\n", NO_ADDRESS),
        ("http://h h", NO_ADDRESS),
        ("http://h/\ta", NO_ADDRESS),
        ("\0http://h", NO_ADDRESS),
        ("http://h\u00a0", NO_ADDRESS),
        ("http://h?", MORE_THAN_AN_ADDRESS),
        ("http://h/?", MORE_THAN_AN_ADDRESS),
        ("http://h#", MORE_THAN_AN_ADDRESS),
        ("http://h?a=b", MORE_THAN_AN_ADDRESS),
        ("http://u:p@h", MORE_THAN_AN_ADDRESS),
    ],
)
def test_a_text_that_is_not_only_an_address_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        web_address(text, "the address")
