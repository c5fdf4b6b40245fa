"""Checks what an application gives against the annotations, before anything is done with it.

A value of a wrong type is refused by the call that it is given to. Otherwise it would be kept or queued, and fail later: in a library,
in another thread, again and again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, isfunction, signature
from inspect import iscoroutinefunction as is_awaited
from itertools import chain, repeat
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown

Checked = TypeVar("Checked", bound=type)
Act = TypeVar("Act", bound=Callable[..., Any])
Accepts = Callable[[object], bool]
_WORDS: Mapping[object, str] = {
    NoneType: "None",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    Callable: "a function",
}


def checks_arguments(kind: Checked) -> Checked:
    """Decorate a class: its constructor and its public methods raise InvalidInput for an argument of a wrong type. Methods that are named in
    `_guards_itself` check their arguments themselves.
    """
    for name, member in list(vars(kind).items()):
        is_public = name == "__init__" or not name.startswith("_")
        if not is_public or name in getattr(kind, "_guards_itself", ()):
            continue
        if isinstance(member, classmethod):
            setattr(kind, name, classmethod(checked(member.__func__, has_self=True)))
        elif isfunction(member):
            setattr(kind, name, checked(member, has_self=True))
    return kind


def checked(act: Act, *, has_self: bool = False, call: str | None = None) -> Act:
    """Return `act`, which raises InvalidInput for an argument of a wrong type. `has_self`: the first argument is not checked. `call` is
    how the application writes the call, if it is not that of `act`.
    """
    demand = _Arguments(act, has_self=has_self, call=call or _call_of(act)).demand
    if is_awaited(act):

        @wraps(act)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            demand(arguments, named)
            return await act(*arguments, **named)

        return cast(Act, awaited)

    @wraps(act)
    def called(*arguments: Any, **named: Any) -> Any:
        demand(arguments, named)
        return act(*arguments, **named)

    return cast(Act, called)


class _Arguments:
    """What one function takes. The annotations are resolved at the first call, when every module is loaded."""

    def __init__(self, act: Callable[..., Any], *, has_self: bool, call: str) -> None:
        self._act, self._has_self, self._call = act, has_self, call
        self._hints: Mapping[str, Any] = {}
        self._accepts: dict[str, Accepts] | None = None
        self._positional: list[str] = []
        self._rest: str | None = None

    def demand(self, arguments: Sequence[object], named: Mapping[str, object]) -> None:
        """Raise InvalidInput for the first argument of a wrong type. Missing arguments, and those too many, are left to the call."""
        accepts = self._resolved() if self._accepts is None else self._accepts
        names = self._positional if self._rest is None else chain(self._positional, repeat(self._rest))
        given = zip(names, arguments[1:] if self._has_self else arguments, strict=False)
        for name, value in chain(given, named.items()) if named else given:
            if name in accepts and not accepts[name](value):
                raise InvalidInput(f"{self._call}: {_refusal(name, self._hints[name], value)}")

    def _resolved(self) -> dict[str, Accepts]:
        parameters = [*signature(self._act).parameters.values()][int(self._has_self) :]
        in_order = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        self._hints = get_type_hints(self._act)
        self._positional = [one.name for one in parameters if one.kind in in_order]
        self._rest = next((one.name for one in parameters if one.kind is Parameter.VAR_POSITIONAL), None)
        self._accepts = {one.name: _accepts(self._hints[one.name]) for one in parameters}
        return self._accepts


def _call_of(act: Callable[..., Any]) -> str:
    """The call as an application writes it: `Client` for the constructor, `consumer.receive` for a method of any kind of consumer."""
    *_, owner, name = ("", *act.__qualname__.split("."))
    if name == "__init__":
        return owner
    words = re.findall("[A-Z][a-z]*", owner)
    return f"{words[-1].lower()}.{name}" if words else name


def _refusal(name: str, hint: Any, value: Any) -> str:
    """What is wrong with the value. Of a mapping or a sequence the item is named; values are not shown, they may be secrets."""
    for one in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        origin, of = get_origin(one), get_args(one)
        is_held = isinstance(origin, type) and issubclass(origin, Mapping | Sequence) and origin is not tuple
        if not is_held or not isinstance(value, origin) or isinstance(value, str | bytes):
            continue
        is_mapping = issubclass(origin, Mapping)
        for key in value if is_mapping else ():
            if not _accepts(of[0])(key):
                return f"a key of {name} must be {_described(of[0])}, not {_kind_of(key)}"
        for at, item in value.items() if is_mapping else enumerate(value):
            if not _accepts(of[-1])(item):
                return _refusal(f"{name}[{shown(at)}]", of[-1], item)
    return f"{name} must be {_described(hint)}, not {_kind_of(value)}"


def _accepts(hint: Any) -> Accepts:
    """Return whether a value is what `hint` says: the value, and what a sequence or a mapping holds."""
    origin = get_origin(hint)
    if hint is Any or hint is object or isinstance(hint, TypeVar):
        return lambda _value: True
    if origin in (Union, UnionType):
        several = [_accepts(one) for one in get_args(hint)]
        return lambda value: any(accepts(value) for accepts in several)
    if hint is float:
        return lambda value: _is_number(value, (int, float))
    if hint is int:
        return lambda value: _is_number(value, int)
    if origin is not None and issubclass(origin, Mapping | Sequence) and origin is not tuple:
        return _holds(origin, [_accepts(one) for one in get_args(hint)])
    if getattr(hint, "_is_protocol", False):
        members = [name for one in hint.__mro__ for name in vars(one) if _is_member(one, name)]
        return lambda value: all(hasattr(value, name) for name in members)
    kind = hint if origin is None else origin
    return lambda value: isinstance(value, kind) and not (kind is Iterable and isinstance(value, str | bytes))


def _is_number(value: object, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool) and not _is_nan(value)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _holds(kind: type, of: Sequence[Accepts]) -> Accepts:
    """A mapping with keys and values, or a sequence with members, that are accepted. Text is no sequence."""

    def accepts(value: Any) -> bool:
        if not isinstance(value, kind) or isinstance(value, str | bytes):
            return False
        held: Sequence[Any] = [value.keys(), value.values()] if isinstance(value, Mapping) else [value]
        return all(is_right(one) for is_right, some in zip(of, held, strict=False) for one in some)

    return accepts


def _is_member(protocol: Any, name: str) -> bool:
    return getattr(protocol, "_is_protocol", False) and not name.startswith("_")


def _described(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_described, get_args(hint)))
    if origin is not None and issubclass(origin, Mapping | Sequence):
        return f"{origin.__name__} of {' to '.join(map(_described, get_args(hint)))}"
    kind = hint if origin is None else origin
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _kind_of(value: object) -> str:
    """The value itself is not shown: it may be a secret."""
    return "nan" if _is_nan(value) else f"a value of type {type(value).__name__}"
