"""The routes of actions: path parameters, body and response from the declaration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, create_model

from controller.actions.action import AnyAction, all_actions
from controller.actions.responses import Response
from controller.entrypoints.web.api.changes import Change, Changing, Wait
from controller.entrypoints.web.asked import Namespace, Topic
from controller.entrypoints.web.demands import DemandingRoute, demand_of
from controller.entrypoints.web.paths import NAMESPACE_PARTS, PREFIX, TOPIC_PARTS, Name
from controller.entrypoints.web.refusals import REFUSALS

_PATH_TYPES: Mapping[str, Any] = MappingProxyType(
    {"topic": Topic, "namespace": Namespace, "subscription": Name}
)
"""Types of path parameters; another field has the type that the request declares."""
_PARTS = {"topic": TOPIC_PARTS, "namespace": NAMESPACE_PARTS}


def router() -> APIRouter:
    """Return the routes of all actions."""
    routes = APIRouter(route_class=DemandingRoute, responses=REFUSALS)
    for action in all_actions():
        path = re.sub(r"{(topic|namespace)}", lambda field: _PARTS[field[1]], action.path)
        routes.add_api_route(
            PREFIX + path,
            _endpoint(action),
            methods=[action.method],
            dependencies=[demand_of(action.right)],
            response_model=action.response,
            tags=[action.name.split()[0]],
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
    parameters = [_parameter("change", Changing)]
    for name in action.path_fields:
        declared = action.request.model_fields[name]
        parameters.append(_parameter(name, _PATH_TYPES.get(name) or declared.rebuild_annotation()))
    if body is not None:
        is_needed = any(field.is_required() for field in body.model_fields.values())
        annotation = body if is_needed else body | None
        parameters.append(
            _parameter(
                "body", Annotated[annotation, Body()], inspect.Parameter.empty if is_needed else body()
            )
        )
    if action.is_waited_for:
        parameters.append(_parameter("wait_seconds", Wait, 0.0))
    perform.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return perform


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


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
