"""Requests for reshapes: what each interface accepts as a time to keep a split."""

from __future__ import annotations

import pytest

from controller.actions.fields import fill_in
from controller.actions.segments import SplitSegment
from controller.domain.errors import InvalidInput
from controller.tasks.actions import form_fields

TOPIC = "topic://acme/shop/orders"


def request(keep: object) -> SplitSegment:
    return fill_in(SplitSegment, {"topic": TOPIC, "segment_id": 0, "keep": keep})


@pytest.mark.parametrize(("given", "keep"), [("2h", "2h"), (" 90min ", "90min"), ("", None), (None, None)])
def test_a_time_to_keep_is_text_that_every_interface_sends_as_it_is(given: object, keep: str | None) -> None:
    assert request(given).keep == keep
    assert fill_in(SplitSegment, request(given).model_dump(mode="json")) == request(given)


@pytest.mark.parametrize("given", ["soon", "2", "-2h", "²h", "0h", "367d", "9999999w", 7200, True])
def test_any_other_time_is_refused(given: object) -> None:
    with pytest.raises(InvalidInput, match="keep="):
        request(given)


def test_the_form_takes_the_time_as_text() -> None:
    assert form_fields("segments split")["keep"]["type"] == ["null", "string"]
