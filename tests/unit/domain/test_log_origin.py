"""The properties of a log tell who created the log, and properties of other programs tell nothing."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.log_origin import LogOrigin

NUMBERS = st.lists(st.integers(0, 10**18 - 1), max_size=5).map(tuple)
ORIGINS = st.builds(LogOrigin, st.uuids().map(str), st.integers(0, 10**18 - 1), NUMBERS, NUMBERS)
ORIGIN = LogOrigin(str(uuid.UUID(int=7)), 3, (1, 2), (32768,))
STORED = ORIGIN.to_properties()
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=3)


@given(ORIGINS, st.dictionaries(st.text(), st.text()))
def test_an_origin_comes_back_from_its_properties_whatever_stands_beside_them(
    origin: LogOrigin, others: dict[str, str]
) -> None:
    assert LogOrigin.from_properties({**others, **origin.to_properties()}) == origin


@given(st.dictionaries(st.sampled_from(sorted(STORED)), JSON))
def test_no_properties_raise(properties: dict[str, Any]) -> None:
    found = LogOrigin.from_properties(properties)

    assert found is None or isinstance(found, LogOrigin)


def test_the_properties_are_named_texts() -> None:
    assert STORED == {
        "cleave.token": "00000000-0000-0000-0000-000000000007",
        "cleave.epoch": "3",
        "cleave.parents": "1,2",
        "cleave.bucket-splits": "32768",
    }


def test_no_parents_and_no_splits_are_empty_texts() -> None:
    first = LogOrigin("token", 0, (), ())

    assert (first.to_properties()["cleave.parents"], first.to_properties()["cleave.bucket-splits"]) == (
        "",
        "",
    )
    assert LogOrigin.from_properties(first.to_properties()) == first


@pytest.mark.parametrize("key", sorted(STORED))
def test_an_incomplete_origin_is_none(key: str) -> None:
    assert LogOrigin.from_properties({name: text for name, text in STORED.items() if name != key}) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cleave.token", ""),
        ("cleave.token", None),
        ("cleave.token", 7),
        *(
            ("cleave.epoch", value)
            for value in ("", "-1", "1.5", "+3", " 3", "3\n", "٣", "1,2", "9" * 19, "9" * 5000, 3)
        ),
        *(
            (key, value)
            for key in ("cleave.parents", "cleave.bucket-splits")
            for value in (",", "1,", ",1", "1,,2", "1;2", "[1]", "1, 2", "x", "-1", "9" * 19, None, [1])
        ),
    ],
)
def test_an_origin_with_an_unreadable_value_is_none(key: str, value: object) -> None:
    assert LogOrigin.from_properties({**STORED, key: value}) is None
