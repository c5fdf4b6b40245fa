"""Parameters of generated commands: a required field is an argument, as is a field marked `AS_ARGUMENT`; every other field is an option."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from controller.actions.fields import AS_ARGUMENT
from controller.actions.signatures import describe, keyword
from controller.commands import completion

_COMPLETIONS: Mapping[str, Callable[..., list[str]]] = {
    "topic": completion.topics,
    "level": completion.levels,
    "parameters": completion.parameters,
    "data_plane": completion.planes,
}
_METAVARS: Mapping[str, str] = {"parameters": "PARAMETER=VALUE..."}
_SIMPLE_TYPES = (bool, int, float, str)


def generated(
    run: Callable[..., None], name: str, documentation: str | None, parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """Give `run` the last word of the name, the help and the parameters of a generated command, and mark it as a command that works on the
    database and over HTTP. Return `run`.
    """
    command: Callable[..., None] = describe(run, name.rsplit(maxsplit=1)[-1], documentation, parameters)
    command.is_generated = True  # type: ignore[attr-defined]  # `remote_commands` reads it
    return command


def parameter_of(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return the command's parameter for a field: an argument if the field is required or marked AS_ARGUMENT, otherwise an option.

    A parameter that is not required is None if it is not given, whatever the default of the field. Fields whose type Typer cannot read are
    texts, which Pydantic checks later.
    """
    kind, is_list = _type_of(field)
    details: dict[str, Any] = {"help": field.description, "autocompletion": _COMPLETIONS.get(name)}
    annotation: Any = list[kind] if is_list else kind  # type: ignore[valid-type]
    info = typer.Argument(metavar=_METAVARS.get(name, name.upper()), **details)
    if field.is_required():
        return keyword(name, Annotated[annotation, info])
    if AS_ARGUMENT in field.metadata:
        return keyword(name, Annotated[annotation | None, info], None)
    word = (field.alias or name).replace("_", "-")
    words = f"--{word}/--no-{word}" if kind is bool and field.default is None else f"--{word}"
    return keyword(name, Annotated[annotation | None, typer.Option(words, **details)], None)


def _type_of(field: FieldInfo) -> tuple[type, bool]:
    """Return the type that Typer reads for the field (bool, int, float or str), and True if the field has several items (a sequence or
    pairs), so that its option is repeated. The items are str, as is a type that Typer cannot read. Of a union, only the first type that is
    not None counts.
    """
    annotation = field.annotation
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, UnionType):
            [annotation] = [part for part in get_args(annotation) if part is not NoneType][:1]
        else:
            break
    if origin is Literal:
        return str, False
    if origin is not None:  # a sequence, or pairs
        return str, True
    return (annotation if annotation in _SIMPLE_TYPES else str), False  # type: ignore[return-value]
