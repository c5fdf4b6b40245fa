"""Two evaluations are compared by the values of their documents."""

from __future__ import annotations

from typing import Any

import pytest

from controller.questions.evaluations import matched


@pytest.mark.parametrize(
    ("stored", "replayed"),
    [
        ({"value": 1}, {"value": 1.0}),
        ({"value": 10**20}, {"value": 1e20}),  # as `jsonb` returns it
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
    ],
)
def test_equal_numbers_and_another_order_of_keys_are_no_difference(
    stored: dict[str, Any], replayed: dict[str, Any]
) -> None:
    assert matched([stored], [replayed]) == ([], [], [replayed])


def test_repetitions_count_and_a_text_is_no_number() -> None:
    assert matched([{"a": 1}, {"a": 1}], [{"a": 1}, {"a": "1"}]) == ([{"a": 1}], [{"a": "1"}], [{"a": 1}])
