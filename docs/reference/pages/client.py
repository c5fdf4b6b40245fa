"""The page about the client: the names that `pulsar_cleave` exports, from their docstrings."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import Any

import pulsar_cleave
from controller.domain.errors import CleaveError
from docs.reference.pages.markdown import code, page, table

_FIRST = ("Client", "EmbeddedAuth", "PulsarAuth")
_MADE_BY_THE_APPLICATION = {"Client", "EmbeddedAuth", "PulsarAuth", "PositionTable"}


def client_page() -> str:
    """Return the page of every exported name: classes with arguments, attributes and methods, functions, errors."""
    names = [*_FIRST, *(name for name in pulsar_cleave.__all__ if name not in _FIRST)]
    exported = {name: getattr(pulsar_cleave, name) for name in names}
    errors = {name: export for name, export in exported.items() if _is_error(export)}
    parts = [_section(name, export) for name, export in exported.items() if name not in errors]
    rows = [(code(name), " ".join(_text(export).split())) for name, export in sorted(errors.items())]
    return page(
        "The client",
        "This page is for developers of applications who look up a class, a method or an error. `pulsar-cleave[client]` installs the package, and "
        "`import pulsar_cleave` imports it. [Consume from an application](../how-to/consume-from-an-application.md) explains its use, and "
        "[coming from the Pulsar client](../how-to/coming-from-the-pulsar-client.md) compares it with `pulsar-client`.",
        *parts,
        "## Errors",
        "After a `Retryable` error a later call may succeed; after a `Terminal` error the same call fails again. See [all errors](errors.md).",
        table(("error", "meaning"), rows),
    )


def _is_error(export: Any) -> bool:
    return isinstance(export, type) and issubclass(export, CleaveError)


def _section(name: str, export: Any) -> str:
    parts = [f"## {name}"]
    if name in _MADE_BY_THE_APPLICATION or not isinstance(export, type):
        parts.append(f"```python\n{_signature(name, export)}\n```")
    parts.append(_text(export))
    if not isinstance(export, type):
        return "\n\n".join(parts)
    construction = vars(export).get("__init__")
    if name in _MADE_BY_THE_APPLICATION and construction is not None and construction.__doc__:
        parts.append(_text(construction))
    attributes = list(_attributes(export))
    if attributes:
        parts.append(table(("attribute", "meaning"), attributes).rstrip())
    parts += [f"### {name}.{method}\n\n{text}" for method, text in _methods(export)]
    return "\n\n".join(parts)


def _attributes(cls: type) -> Iterator[tuple[str, str]]:
    """Yield attributes with a docstring, members of an enumeration, and properties."""
    for base in reversed(cls.__mro__):
        if base.__module__.startswith(("controller.", "pulsar_cleave.")):
            for name, text in _documented(base):
                yield code(name), text
    for name, member in inspect.getmembers(cls, lambda value: isinstance(value, property | cached_property)):
        if not name.startswith("_") and not issubclass(cls, Enum):
            yield code(name), " ".join(_text(member).split())


def _documented(cls: type) -> Iterator[tuple[str, str]]:
    """Yield names in the body of a class that are followed by a docstring."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    for field, text in pairwise(body):
        target = field.target if isinstance(field, ast.AnnAssign) else getattr(field, "targets", [None])[0]
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if is_text and isinstance(target, ast.Name) and not target.id.startswith("_"):
            yield target.id, " ".join(str(text.value.value).split())


def _methods(cls: type) -> Iterator[tuple[str, str]]:
    for name, member in inspect.getmembers(cls, callable):
        function = inspect.unwrap(member)
        if name.startswith("_") or not inspect.isroutine(function):
            continue
        if not str(getattr(function, "__module__", "")).startswith(("controller.", "pulsar_cleave.")):
            continue
        yield name, f"```python\n{_signature(name, member)}\n```\n\n{_text(member)}"


def _signature(name: str, export: Any) -> str:
    """Return a call as it is written, with one argument per line if the call is long."""
    form = inspect.signature(export)
    arguments = [str(each) for each in form.parameters.values() if each.name != "self"]
    stars = [at for at, each in enumerate(form.parameters.values()) if each.kind is each.KEYWORD_ONLY]
    if stars and not any(each.kind is each.VAR_POSITIONAL for each in form.parameters.values()):
        arguments.insert(stars[0] - (len(form.parameters) - len(arguments)), "*")
    returned = form.return_annotation
    end = "" if returned is form.empty or isinstance(export, type) else f" -> {_named(returned)}"
    prefix = "async def " if inspect.iscoroutinefunction(inspect.unwrap(export)) else ""
    call = f"{prefix}{name}({', '.join(arguments)}){end}"
    if len(call) > 100:
        lines = "".join(f"    {argument},\n" for argument in arguments)
        call = f"{prefix}{name}(\n{lines}){end}"
    return call.replace("'", "")


def _named(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _text(export: Any) -> str:
    return inspect.getdoc(export) or ""
