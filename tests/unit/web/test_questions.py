"""Filters of questions in the query of a request."""

from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Query
from fastapi.testclient import TestClient
from pydantic import ValidationError

from controller.questions.operations import LIST_OPERATIONS
from controller.questions.question import Question, all_questions
from controller.web.questions import _query_of

SEVERAL = [
    (question, name)
    for question in all_questions()
    for name, one in question.filters.items()
    if one.most is not None
]


@pytest.mark.parametrize(("question", "name"), SEVERAL, ids=lambda one: getattr(one, "name", one))
def test_a_filter_of_several_values_takes_one_value_and_two(question: Question, name: str) -> None:
    app, model = FastAPI(), _query_of(question)

    @app.get("/")
    def values(query: Annotated[model, Query()]) -> Any:  # type: ignore[valid-type]
        return getattr(query, name)

    [value] = (question.filters[name].examples or [[]])[0]
    client = TestClient(app)

    assert client.get("/", params={name: [value]}).json() == [value]
    assert client.get("/", params={name: [value, value]}).json() == [value, value]
    assert client.get("/").json() is None


@pytest.mark.parametrize(("question", "name"), SEVERAL, ids=lambda one: getattr(one, "name", one))
def test_a_filter_takes_no_more_values_than_it_says(question: Question, name: str) -> None:
    model, most = _query_of(question), question.filters[name].most
    [value] = (question.filters[name].examples or [[]])[0]
    assert model is not None
    assert most is not None

    assert len(getattr(model.model_validate({name: [value] * most}), name)) == most
    with pytest.raises(ValidationError, match="too_long"):
        model.model_validate({name: [value] * (most + 1)})


def test_a_request_with_too_many_values_is_refused() -> None:
    app, model = FastAPI(), _query_of(LIST_OPERATIONS)

    @app.get("/")
    def count(query: Annotated[model, Query()]) -> int:  # type: ignore[valid-type]
        return len(query.state)  # type: ignore[attr-defined]

    client = TestClient(app)

    assert client.get("/", params={"state": ["done"] * 20}).json() == 20
    assert client.get("/", params={"state": ["done"] * 21}).status_code == 422


def test_there_are_filters_of_several_values() -> None:
    assert len(SEVERAL) > 3
