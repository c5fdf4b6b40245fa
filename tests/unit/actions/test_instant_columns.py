"""Which columns of a view's row become datetimes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter

from controller.actions.instant_columns import InstantRow, read_instants

TEXT, INSTANT = "2026-11-23T12:00:00+00:00", datetime(2026, 11, 23, 12, tzinfo=UTC)


INSTANT_COLUMNS = (
    "created_at",
    "cold_since",
    "paused_until",
    "at",
    "since",
    "until",
    "deadline",
    "not_before",
)
OTHER_COLUMNS = ("reason", "at_epoch", "since_ms", "untilled", "created")


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        *((column, TEXT, INSTANT) for column in INSTANT_COLUMNS),
        *((column, TEXT, TEXT) for column in OTHER_COLUMNS),
        *(("created_at", value, value) for value in (None, INSTANT, 7)),
    ],
)
def test_the_text_of_an_instant_is_parsed_and_every_other_value_stays(
    column: str, value: Any, expected: Any
) -> None:
    assert read_instants({column: value}) == {column: expected}


def test_the_row_itself_is_not_changed() -> None:
    row = {"created_at": TEXT}

    assert TypeAdapter(InstantRow).validate_python(row) == {"created_at": INSTANT}
    assert row == {"created_at": TEXT}


def test_a_text_that_is_no_instant_is_refused() -> None:
    with pytest.raises(ValueError, match="isoformat"):
        read_instants({"created_at": "yesterday"})
