"""Parameters of generated routes: path parameters from the fields that a declaration's path names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from controller.actions.fields import PATH_FORMS
from controller.entrypoints.web.asked import Bundle, Namespace, Topic
from controller.entrypoints.web.paths import PREFIX, Name

_TYPES: Mapping[str, Any] = MappingProxyType(
    {"topic": Topic, "namespace": Namespace, "bundle": Bundle, "subscription": Name}
)
"""Types of path parameters; another field has the type that the request declares."""


def route_path(path: str) -> str:
    """Return the path of a route, with the parts of each field."""
    return PREFIX + re.sub(r"{(\w+)}", lambda name: PATH_FORMS.get(name[1], name[0]), path)


def path_parameters(names: Sequence[str], request: type[BaseModel]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of an endpoint for the fields that its path names."""
    for name in names:
        yield keyword(name, _TYPES.get(name) or _declared(request.model_fields[name]))


def _declared(field: FieldInfo) -> Any:
    described = Path(description=field.description, examples=field.examples)
    return Annotated[(field.annotation, described, *field.metadata)]


def keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """Return a keyword parameter."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
