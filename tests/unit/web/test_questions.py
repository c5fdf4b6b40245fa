"""Filters of questions in the query of a request."""

from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Query
from fastapi.testclient import TestClient

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


def test_there_are_filters_of_several_values() -> None:
    assert len(SEVERAL) > 3
