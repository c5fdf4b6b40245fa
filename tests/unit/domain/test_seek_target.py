"""Where a subscription may go on from, as people write it."""

from __future__ import annotations

import pytest

from controller.domain.errors import InvalidInput
from controller.domain.seek_target import EARLIEST, LATEST, SeekTarget, parse_seek_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", EARLIEST),
        ("LATEST", LATEST),
        ("1970-01-01T00:00:01.5Z", SeekTarget(1500)),
        ("1970-01-01T01:00:01+01:00", SeekTarget(1000)),
    ],
)
def test_what_people_write(text: str, target: SeekTarget) -> None:
    assert parse_seek_target(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-22",
        "2026-11-22T10:00:00",
        "1969-12-31T00:00:00Z",
        "1969-12-31T23:59:59.9995Z",
        "9999-12-31T00:00:00Z",
    ],
)
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"instant|latest"):
        parse_seek_target(text)


def test_each_says_where_it_goes() -> None:
    assert [one.sentence for one in (EARLIEST, LATEST, SeekTarget(5))] == [
        "to the first message that still exists",
        "past everything published so far",
        "to the first message published at 1970-01-01T00:00:00.005Z or later",
    ]
