"""Values in messages: whatever JSON can hold has a short form."""

from __future__ import annotations

from typing import Any

import pytest

from controller.domain.formatting import counted, shown


def test_a_value_of_any_depth_is_shown() -> None:
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]

    assert shown(deep) == "a list that is nested too deeply"
    assert shown({"a": deep}) == "a dict that is nested too deeply"


def test_an_integer_of_any_length_is_shown() -> None:
    assert shown(10**5_000) == "an integer of 16610 bits"


@pytest.mark.parametrize(("number", "text"), [(0, "no rows"), (1, "1 row"), (2, "2 rows")])
def test_a_noun_agrees_with_its_number(number: int, text: str) -> None:
    assert counted(number, "row") == text
