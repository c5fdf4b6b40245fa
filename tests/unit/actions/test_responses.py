"""Responses of actions: what every subclass owes the code that is generic over them."""

from __future__ import annotations

from controller.actions.action import all_actions
from controller.actions.responses import Answer, OperationResponse


def test_a_repeated_request_is_answered_with_the_operation_alone() -> None:
    """The topic may be gone, so nothing else about it can be found: further fields have defaults."""
    needed = {
        (action.name, name)
        for action in all_actions()
        if issubclass(action.response, OperationResponse)
        for name, field in action.response.model_fields.items()
        if field.is_required() and name not in OperationResponse.model_fields
    }

    assert needed == set()


def test_an_action_names_the_kinds_of_the_operation_that_it_returns() -> None:
    """Without them, a repeated request whose topic is gone would not get its operation."""
    assert {action.name for action in all_actions() if action.operation_kinds} == {
        action.name for action in all_actions() if issubclass(action.response, OperationResponse)
    }


def test_every_response_has_a_sentence_and_rows_of_its_own() -> None:
    for action in all_actions():
        if not (action.is_command or issubclass(action.response, Answer)):
            continue  # a report that only programs read
        assert not action.response.sentence.__qualname__.startswith("Response."), action.name
        assert not action.response.rows.__qualname__.startswith("Response."), action.name
