"""Functions with a signature that a declaration gives: Typer and FastAPI read parameters from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

REQUIRED = inspect.Parameter.empty


def keyword(name: str, annotation: Any, default: Any = REQUIRED) -> inspect.Parameter:
    """Return a keyword parameter; without a default it is required."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def describe(
    function: Callable[..., Any],
    name: str,
    documentation: str | None,
    parameters: Iterable[inspect.Parameter],
) -> Any:
    """Give the function a name, a docstring and keyword parameters, required ones first, and return it."""
    ordered = sorted(parameters, key=lambda parameter: parameter.default is not REQUIRED)
    function.__name__, function.__doc__ = name.replace(" ", "_").replace("-", "_"), documentation
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    function.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]  # `inspect.signature` reads it
    return function
