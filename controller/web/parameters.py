"""Parameters of generated routes: path parameters from the fields that a declaration's path names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import Depends, Path
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from controller.actions.fields import PATH_FORMS
from controller.actions.signatures import keyword
from controller.domain.names import CLUSTER
from controller.web.paths import PREFIX, Name
from controller.web.shared_parameters import Bundle, Namespace, Topic

_TYPES: Mapping[str, Any] = MappingProxyType(
    {"topic": Topic, "namespace": Namespace, "bundle": Bundle, "subscription": Name}
)
"""Types of path parameters; another field has the type that the request declares."""


async def _cluster() -> str:
    return CLUSTER


Cluster = Annotated[str, Depends(_cluster)]
"""Type of the level in a path that means the cluster."""
LEVELS: Mapping[str, Any] = MappingProxyType(
    {"cluster": Cluster, "namespaces/{namespace}": Namespace, "topics/{topic}": Topic}
)
"""Types of the level by the path that replaces `{level}`."""


def route_path(path: str) -> str:
    """Return the path of a route: the prefix of the API and `path`, in which a field with parts, such as `{topic}`, is replaced by its
    parts. Other fields stay.
    """
    return PREFIX + re.sub(r"{(\w+)}", lambda name: PATH_FORMS.get(name[1], name[0]), path)


def path_parameters(
    names: Sequence[str], request: type[BaseModel], level: Any = None
) -> Iterator[inspect.Parameter]:
    """Yield the parameters of an endpoint for the fields that its path names. `level` is the type of the field
    `level`; None for a path without this field.
    """
    for name in names:
        kind = level if name == "level" else _TYPES.get(name)
        yield keyword(name, kind or _declared(request.model_fields[name]))


def _declared(field: FieldInfo) -> Any:
    """Return the type of a path parameter with the constraints, the description and the examples of the field."""
    described = Path(description=field.description, examples=field.examples)
    return Annotated[(field.annotation, described, *field.metadata)]
