"""What statistics of a broker say of consumers, in the words of its version, and who is in whose way."""

from __future__ import annotations

from typing import Any

import pytest

from controller.dataplane.log_client import Ownership
from controller.dataplane.pulsar.cursors import Attachments, Holder, _holder, ownership_text
from controller.domain.hash_range import FULL_RANGE, HashRange

LOW, HIGH = FULL_RANGE.halves()
A, B = Holder("a", "1", "x", (LOW,)), Holder("b", "2", "y", (HIGH,))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"keyHashRangeArrays": [[0, 4095], [8192, 12287]]}, (HashRange(0, 4095), HashRange(8192, 12287))),
        ({"keyHashRanges": ["[0, 4095]", "[8192, 12287]"]}, (HashRange(0, 4095), HashRange(8192, 12287))),
        ({"keyHashRangeArrays": [[0, 65536]]}, (FULL_RANGE,)),
        ({}, (FULL_RANGE,)),
    ],
)
def test_ranges_of_a_consumer(said: dict[str, Any], expected: tuple[HashRange, ...]) -> None:
    assert _holder(said, is_shared=True).slots == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (ownership_text(Ownership(1_732_000_000_000_000, 12)), Ownership(1_732_000_000_000_000, 12)),
        (None, None),
        ("", None),
        ("12", None),
        ("1.2.3", None),
        ("1.x", None),
        ("-1.2", None),
    ],
)
def test_what_a_consumer_was_assigned_by(written: str | None, expected: Ownership | None) -> None:
    """Anybody may write a property."""
    marks = {} if written is None else {"cleave.ownership": written}

    assert _holder({"metadata": marks}, is_shared=True).ownership == expected


def test_sharers_are_in_the_way_where_they_overlap() -> None:
    found = Attachments((A, B), is_shared=True, backlog=0)

    assert found.in_the_way_of(LOW) == (A,)
    assert found.in_the_way_of(HashRange(0x7FFF, 0x8000)) == (A, B)
    assert found.in_the_way_of(None) == (A, B)
    assert found.covers_all
    assert not Attachments((A,), is_shared=True, backlog=0).covers_all


def test_who_reads_alone_is_in_everybodys_way() -> None:
    assert Attachments((A,), is_shared=False, backlog=0).in_the_way_of(HIGH) == (A,)
    assert Attachments((), is_shared=False, backlog=0).in_the_way_of(HIGH) == ()
