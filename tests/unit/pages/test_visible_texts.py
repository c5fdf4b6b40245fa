"""Pages show invisible characters of names escaped."""

from __future__ import annotations

from html import unescape

import pytest

from controller.domain.formatting import printable
from controller.pages import context
from tests.support.terminal_attacks import ATTACKS, is_safe


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_text_is_visible_and_no_html(attack: str) -> None:
    page = context._templates.from_string("{{ name }} {{ names|words }}").render(
        name=f"<b>{attack}", names=[attack]
    )
    assert is_safe(page)
    assert page.startswith("&lt;b&gt;")
    assert unescape(page).startswith(f"<b>{printable(attack, lines=True)}")
