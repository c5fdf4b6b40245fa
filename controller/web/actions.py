"""The routes of actions: path parameters, body and response from the declaration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, create_model

from controller.actions.action import AnyAction, all_actions
from controller.actions.perform import perform_in
from controller.actions.responses import Answer
from controller.actions.rights import Right
from controller.actions.signatures import REQUIRED, describe, keyword
from controller.services.computing.computers import Computation
from controller.web.computing_limits import COMPUTE, Computing
from controller.web.http_caller import Acting, HttpCaller
from controller.web.idempotent_changes import Change, Changing, WaitedChanging
from controller.web.parameters import LEVELS, Cluster, path_parameters, route_path
from controller.web.refusals import REFUSALS
from controller.web.route_rights import DEMAND_OF, DemandingRoute


def router() -> APIRouter:
    """Return a router with one route for each action, or, for an action whose path has a level, one route for each
    level. Each route demands the right of the action; the route for the cluster demands the action's `cluster_right`,
    if there is one. A route of an action that computes waits for a turn of `computing_limits`.
    """
    routes = APIRouter(route_class=DemandingRoute, responses=REFUSALS)
    for action in all_actions():
        for path, right, level in _paths(action):
            routes.add_api_route(
                route_path(path),
                _endpoint(action, level),
                methods=[action.method],
                dependencies=[DEMAND_OF[right], *([COMPUTE] if action.computes else [])],
                response_model=action.response,
                tags=[action.name.split()[0].replace("-", " ")],
            )
    return routes


def _paths(action: AnyAction) -> Iterator[tuple[str, Right, Any]]:
    """Yield each path of the action, the right that the path demands, and the type of the level in the path: None for an action without a
    level.
    """
    if "level" not in action.path_fields:
        yield action.path, action.right, None
        return
    for place, level in LEVELS.items():
        right = action.right if level is not Cluster else action.cluster_right or action.right
        yield action.path.replace("{level}", place), right, level


def _endpoint(action: AnyAction, level: Any) -> Any:
    """Return the endpoint of an action. If the action changes nothing, the endpoint performs the action and returns the response; otherwise
    it performs the action, or its dry run (`Change.perform`). Its parameters are the fields of the path, the other fields as the query of a
    GET or else as the body, the options of a change, and the computation of an action that computes. `level`: type of the
    level in the path; None without a level.
    """
    document = _document_of(action)

    def perform(
        by: Acting | Change,
        body: BaseModel | None = None,
        computation: Computation | None = None,
        **path: Any,
    ) -> Answer:
        # without validation: the document was validated by its model, the path by its parameters
        fields = {} if body is None else {name: getattr(body, name) for name in type(body).model_fields}
        request = action.request.model_construct(**fields, **path)
        if isinstance(by, Change):
            return by.perform(action, request, computation)
        answer: Answer = perform_in(by.context(), action, request)
        return answer

    changing = WaitedChanging if action.is_waited_for else Changing
    kind = HttpCaller if action.reads else changing
    parameters = [keyword("by", kind), *path_parameters(action.path_fields, action.request, level)]
    if document is not None:
        is_query = action.method == "GET"
        parameters.append(
            keyword("body", Annotated[document, Query()]) if is_query else _body_parameter(document)
        )
    if action.computes:
        parameters.append(keyword("computation", Computing))
    return describe(perform, action.name, action.request.__doc__, parameters)


def _body_parameter(body: type[BaseModel]) -> inspect.Parameter:
    """Return the parameter for the body. If every field has a default, the body is optional and defaults to these values."""
    is_needed = any(field.is_required() for field in body.model_fields.values())
    annotation = body if is_needed else body | None
    return keyword("body", Annotated[annotation, Body()], REQUIRED if is_needed else body())


@functools.cache
def _document_of(action: AnyAction) -> type[BaseModel] | None:
    """Return a model of the request's fields that the path does not name, which are the body or the query. None if the path names all
    fields.
    """
    fields: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in action.request.model_fields.items()
        if name not in action.path_fields
    }
    if not fields:
        return None
    request = action.request
    return create_model(
        request.__name__,
        __config__=request.model_config,
        __doc__=request.__doc__,
        __module__=request.__module__,
        **fields,
    )
