"""The routes of questions: path and query parameters from the declaration, rows in pages."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from controller.actions.signatures import describe, keyword
from controller.questions.question import (
    PAGES,
    PageRequest,
    Question,
    QuestionRequest,
    all_questions,
    read_page,
)
from controller.web.http_caller import Acting, HttpCaller
from controller.web.parameters import path_parameters, route_path
from controller.web.refusals import REFUSALS, json_answer
from controller.web.route_rights import DEMAND_OF, DemandingRoute


class Rows(BaseModel):
    """A page of rows; a row has the columns of the view that the description of the call names."""

    items: list[dict[str, Any]] = Field(examples=[[{"topic": "topic://acme/shop/orders"}]])
    next: str | None = Field(
        description="Value of `page` for the next request; null at the end.", examples=PAGES
    )


class OneRow(RootModel[dict[str, Any]]):
    """A row with the columns of the view that the description of the call names."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"topic": "topic://acme/shop/orders"}]})


def router() -> APIRouter:
    """Return the routes of all questions."""
    routes = APIRouter(route_class=DemandingRoute, responses=REFUSALS)
    for question in all_questions():
        routes.add_api_route(
            route_path(question.path),
            _endpoint(question),
            methods=["GET"],
            dependencies=[DEMAND_OF[question.right]],
            response_model=OneRow if question.one_row else Rows,
            tags=[question.name.split()[0]],
            openapi_extra=None if question.present else {"x-view": question.relation},
        )
    return routes


def describe_rows(schema: dict[str, Any], view: str) -> dict[str, Any]:
    """Return the OpenAPI schema of a question's answer, which refers to the schema named `view` for its rows.
    `schema` is the schema of the answer without columns.
    """
    row = {"$ref": f"#/components/schemas/{view}"}
    if schema.get("$ref", "").endswith(f"/{OneRow.__name__}"):
        return row
    return {"allOf": [schema], "properties": {"items": {"type": "array", "items": row}}}


def _endpoint(question: Question) -> Any:
    """Return the endpoint of a question: a function that answers with its row, or with a page of its rows as in `Rows`, and raises the
    errors of `read_page`. Its parameters are the fields of the path, and, except for a question of one row, the filters and the page as
    the query.
    """
    query = _query_of(question)
    filters = question.request.model_fields.keys() - question.path_fields

    def ask(acting: Acting, query: Any = None, **path: Any) -> Response:
        limit, page = (1, None) if query is None else (query.size, query.page)
        filter_values = {} if query is None else {name: getattr(query, name) for name in filters}
        # Every field is validated: the query by its model, the others by the parameters of the path.
        request = question.request.model_construct(**filter_values, **path)
        with acting.app.store.transaction() as tx:
            answer = read_page(tx, question, request, limit=limit, page=page)
        if question.one_row:
            return json_answer(answer.rows[0])
        return json_answer({"items": answer.rows, "next": answer.next})

    parameters = [keyword("acting", HttpCaller), *path_parameters(question.path_fields, question.request)]
    if query is not None:
        parameters.append(keyword("query", Annotated[query, Query()]))
    documentation = inspect.cleandoc(question.description)
    if question.relation:
        documentation += f"\n\nA row of `{question.relation}`."
    return describe(ask, question.name, documentation, parameters)


def _query_of(question: Question) -> type[BaseModel] | None:
    """Return the model of the query: the filters that the path does not name, and the page. None for a question
    of one row, which the path names.
    """
    if question.one_row:
        return None
    request: type[QuestionRequest] = question.request
    fields: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in request.model_fields.items()
        if name not in question.path_fields
    }
    return create_model(request.__name__, __base__=PageRequest, __module__=request.__module__, **fields)
