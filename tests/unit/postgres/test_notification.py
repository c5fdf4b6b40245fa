"""What a notification's payload is taken for: ids in ASCII digits within PostgreSQL's bigint, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.whole_numbers import MOST, from_digits
from controller.postgres.notification import RESYNC, Notification
from tests.support.hostile_notifications import KNOWN, PAYLOADS

IDS = st.integers(0, MOST)


@given(IDS, IDS)
def test_ids_are_read_as_they_are_sent(topic_id: int, epoch: int) -> None:
    assert Notification("cleave_layout", f"{topic_id}:{epoch}").ids == (topic_id, epoch)
    assert Notification("cleave_consumers", f"{topic_id}").ids == (topic_id,)
    assert Notification("cleave_layout", f"{topic_id}:{epoch}").first_id == topic_id


@pytest.mark.parametrize("payload", KNOWN)
def test_what_is_no_id_is_none_and_is_not_legible(payload: str) -> None:
    one = Notification("cleave_consumers", payload)

    assert (one.ids, one.first_id, one.is_legible) == ((), None, False)


@given(PAYLOADS)
def test_any_payload_is_read_without_an_error_and_within_bigint(payload: str) -> None:
    one = Notification("cleave_layout", payload)

    assert all(0 <= number <= MOST for number in one.ids)
    assert len(one.ids) <= 2
    assert one.is_legible == (payload == "" or bool(one.ids))


def test_nothing_at_all_a_name_and_a_resync_are_legible() -> None:
    assert Notification("cleave_load", "").is_legible
    assert Notification("cleave_topics", "acme/shop").is_legible
    assert Notification(RESYNC, "").is_legible


@given(st.text())
def test_digits_are_a_number_only_where_python_writes_it_so(text: str) -> None:
    number = from_digits(text)

    assert number is None or (0 <= number <= MOST and str(number) == (text.lstrip("0") or "0"))


@pytest.mark.parametrize(
    ("text", "most", "number"), [("65535", 65_535, 65_535), ("65536", 65_535, None), ("", 9, None)]
)
def test_a_number_above_the_most_is_none(text: str, most: int, number: int | None) -> None:
    assert from_digits(text, most) == number
