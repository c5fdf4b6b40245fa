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
    """Replace the function's name (`name` with underscores for spaces and hyphens), docstring, annotations
    and signature, in place. Return the same function.

    `parameters` are keyword parameters, as `keyword` returns them. The signature has the required ones first,
    otherwise in the given order, and no return annotation. Only the description changes: the function accepts
    the same arguments as before.
    """
    ordered = sorted(parameters, key=lambda parameter: parameter.default is not REQUIRED)
    function.__name__, function.__doc__ = name.replace(" ", "_").replace("-", "_"), documentation
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    function.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]  # `inspect.signature` reads this attribute
    return function
