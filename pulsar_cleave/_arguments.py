"""Checks the types of arguments of public calls, by their annotations: a wrong type is InvalidInput, and nothing has happened."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def checked(act: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Return `act` with its arguments compared with their annotations. Raises InvalidInput, which names the argument."""
    form = signature(act)
    hints: dict[str, Any] = {}

    @wraps(act)
    def guarded(*arguments: Given.args, **named: Given.kwargs) -> Returned:
        if not hints:  # not before the first call: some annotations name classes of other modules
            hints.update(get_type_hints(act))
        try:
            given = form.bind(*arguments, **named)
        except TypeError as error:
            raise InvalidInput(f"{act.__qualname__}: {error}") from None
        for name, value in given.arguments.items():
            if name in hints:
                demand(name, value, hints[name])
        return act(*arguments, **named)

    return guarded


def demand(name: str, value: object, hint: Any) -> None:
    """Raise InvalidInput if the value of an argument is not of the annotated type."""
    if not _is(value, hint):
        raise InvalidInput(f"{name} is {shown(value)}; give {_described(hint)}")


def _is(value: Any, hint: Any) -> bool:
    """Whether the value is of the annotated type. A protocol takes anything."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any or getattr(hint, "_is_protocol", False):
        return True
    if origin in (Union, types.UnionType):
        return any(_is(value, part) for part in parts)
    if hint in (int, float):  # True is an int, and no number
        return isinstance(value, int | hint) and not isinstance(value, bool)
    if origin is Callable:
        return callable(value)
    if origin is None:
        return isinstance(value, hint)
    if not isinstance(value, origin) or isinstance(value, str | bytes):
        return False
    if issubclass(origin, Mapping):
        return all(_is(name, parts[0]) and _is(one, parts[1]) for name, one in value.items())
    return all(_is(one, parts[0]) for one in value)


def _described(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return re.sub(r"[\w.]+\.(\w+)", r"\1", text)
