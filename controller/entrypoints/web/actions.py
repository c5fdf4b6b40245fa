"""The routes of actions: path parameters, body and response from the declaration."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, create_model

from controller.actions.action import AnyAction, all_actions
from controller.actions.responses import Response
from controller.entrypoints.web.api.changes import Change, Changing, Wait
from controller.entrypoints.web.demands import DemandingRoute, demand_of
from controller.entrypoints.web.parameters import keyword, path_parameters, route_path
from controller.entrypoints.web.refusals import REFUSALS


def router() -> APIRouter:
    """Return the routes of all actions."""
    routes = APIRouter(route_class=DemandingRoute, responses=REFUSALS)
    for action in all_actions():
        routes.add_api_route(
            route_path(action.path),
            _endpoint(action),
            methods=[action.method],
            dependencies=[demand_of(action.right)],
            response_model=action.response,
            tags=[action.name.split()[0].replace("-", " ")],
        )
    return routes


def _endpoint(action: AnyAction) -> Any:
    body = _body_of(action)

    def perform(
        change: Change, body: BaseModel | None = None, wait_seconds: float = 0.0, **path: Any
    ) -> Response:
        fields = {} if body is None else {name: getattr(body, name) for name in type(body).model_fields}
        # Every field is validated: the body by its model, the others by the parameters of the path.
        request = action.request.model_construct(**fields, **path)
        return change.perform(action, request, wait_seconds)

    perform.__name__, perform.__doc__ = (
        action.name.replace(" ", "_").replace("-", "_"),
        action.request.__doc__,
    )
    parameters = [keyword("change", Changing), *path_parameters(action.path_fields, action.request)]
    if body is not None:
        is_needed = any(field.is_required() for field in body.model_fields.values())
        annotation = body if is_needed else body | None
        parameters.append(
            keyword("body", Annotated[annotation, Body()], inspect.Parameter.empty if is_needed else body())
        )
    if action.is_waited_for:
        parameters.append(keyword("wait_seconds", Wait, 0.0))
    perform.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return perform


def _body_of(action: AnyAction) -> type[BaseModel] | None:
    """Return the model of the fields that the path does not name; None where no field is left."""
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
