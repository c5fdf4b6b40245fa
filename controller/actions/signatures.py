"""Builds functions whose signatures come from a declaration; Typer and FastAPI read their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

REQUIRED = inspect.Parameter.empty


def keyword(name: str, annotation: Any, default: Any = REQUIRED) -> inspect.Parameter:
    """Return a keyword parameter, which is required if it has no default."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def describe(
    function: Callable[..., Any],
    name: str,
    documentation: str | None,
    parameters: Iterable[inspect.Parameter],
) -> Any:
    """Set the function's name (spaces and hyphens become underscores), docstring and keyword parameters, with
    required parameters first. Return the same function.
    """
    ordered = sorted(parameters, key=lambda parameter: parameter.default is not REQUIRED)
    function.__name__, function.__doc__ = name.replace(" ", "_").replace("-", "_"), documentation
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    function.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]  # `inspect.signature` reads this attribute
    return function
