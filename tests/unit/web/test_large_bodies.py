"""A body may have thousands of items. The first wrong one ends the look at it: to name each of them would hold up everybody else."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, FailFast, TypeAdapter, ValidationError

from controller.web.app import routed_app
from controller.web.sessions import Released

FEW = 100
"""Items of which each may be told by itself."""


def bodies() -> set[type[BaseModel]]:
    """What routes read."""
    fields = [route.body_field for route in routed_app().routes if isinstance(route, APIRoute)]
    kinds = [field.field_info.annotation for field in fields if field is not None]
    return {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)}


def long_lists(kind: type[BaseModel]) -> list[tuple[str, Any]]:
    found = []
    for name, info in kind.model_fields.items():
        annotation = info.annotation
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        most = next((one.max_length for one in info.metadata if hasattr(one, "max_length")), None)
        if get_origin(annotation) is list and (most is None or most > FEW):
            found.append((name, info))
    return found


def test_every_long_list_ends_at_its_first_wrong_item() -> None:
    lists = [(kind, name, info) for kind in bodies() for name, info in long_lists(kind)]

    assert len(lists) >= 6
    for kind, name, info in lists:
        assert any(isinstance(one, FailFast) for one in info.metadata), f"{kind.__name__}.{name}"


def test_what_is_said_of_a_long_list_is_short() -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Released).validate_python({"incarnation": "x", "buckets": [{}] * 1_000})

    assert refused.value.error_count() == 3
