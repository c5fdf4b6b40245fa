"""Two evaluations are compared by the values of their documents."""

from __future__ import annotations

from typing import Any

import pytest

from controller.questions.evaluations import matched


@pytest.mark.parametrize(
    ("stored", "replayed", "found"),
    [
        ([{"value": 1}], [{"value": 1.0}], ([], [], [{"value": 1.0}])),
        ([{"value": 10**20}], [{"value": 1e20}], ([], [], [{"value": 1e20}])),
        ([{"a": 1, "b": [2]}], [{"b": [2], "a": 1}], ([], [], [{"b": [2], "a": 1}])),
        ([{"a": 1}, {"a": 1}], [{"a": 1}, {"a": "1"}], ([{"a": 1}], [{"a": "1"}], [{"a": 1}])),
    ],
    ids=["equal numbers", "as jsonb returns it", "another order of keys", "a repetition, and a text"],
)
def test_equal_rows_are_matched_once_each(
    stored: list[dict[str, Any]], replayed: list[dict[str, Any]], found: tuple[list[dict[str, Any]], ...]
) -> None:
    assert matched(stored, replayed) == found
