"""Text of a caller in every field of every action, as commands, forms and operators give it: a request, or one refusal
that names the field.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from controller.actions.action import AnyAction, all_actions
from controller.actions.fields import fill_in
from controller.domain.errors import InvalidInput
from controller.domain.names import MOST_TOPIC_BYTES

DEEP = "[" * 990 + "]" * 990
HOSTILE = {
    "nul": "\0",
    "wide": "\u4e00" * 500,
    "wider": "\u4e00" * 3_000,
    "slashes": "a/b/c/d/e",
    "dots": "..",
    "digits": "9" * 5_000,
    "infinity": "1e999",
    "deep": DEEP,
    "squared": "\u00b2",
}
ACTIONS = pytest.mark.parametrize("action", all_actions(), ids=lambda action: action.name)


@ACTIONS
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_no_text_is_another_error_than_invalid_input(action: AnyAction, hostile: str) -> None:
    for name in action.request.model_fields:
        for value in (
            hostile,
            [hostile],
            [f"max_segments={hostile}"],
            {hostile: hostile},
            {"profile": hostile},
        ):
            with suppress(InvalidInput):
                fill_in(action.request, {name: value})


@ACTIONS
def test_half_a_surrogate_pair_is_refused_by_the_name_of_its_field(action: AnyAction) -> None:
    inner: object = "\ud800"
    for _ in range(2_000):
        inner = [inner]
    for name in action.request.model_fields:
        for value in ("\ud800", ["\ud800"], {"\ud800": 1}, {"profile": "\ud800"}, inner):
            with pytest.raises(InvalidInput, match=f"^{name} .*surrogate"):
                fill_in(action.request, {name: value})


@ACTIONS
def test_a_namespace_or_topic_that_no_index_holds_is_refused(action: AnyAction) -> None:
    """Whether in the request, or, of a topic, where it is created."""
    part = "\u4e00" * 200
    assert len(part.encode()) * 2 > MOST_TOPIC_BYTES
    for name in {"namespace", "level"} & action.request.model_fields.keys():
        with pytest.raises(InvalidInput, match=name):
            fill_in(action.request, {name: f"{part}/{part}"})
