"""Checks the arguments of an application against the annotations and the bounds of numbers, before any work
is done with them.

The call that receives a value of a wrong type refuses it. Otherwise the value would be stored or queued, and
would fail later, repeatedly: in a library or in another thread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from inspect import Parameter, isasyncgenfunction, isfunction, signature
from inspect import iscoroutinefunction as is_awaited
from itertools import chain, repeat
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown

Checked = TypeVar("Checked", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])
Accepts = Callable[[object], bool]
_WORDS: Mapping[object, str] = {
    NoneType: "None",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    Callable: "a function",
}


class _Bound(NamedTuple):
    """The range of numbers that an argument may have: `least` to `most`. `least` itself is excluded if
    `is_open`.
    """

    least: float
    most: float = math.inf
    is_open: bool = False

    def advice(self, value: Any) -> str | None:
        """Return a hint if the value is outside the bound: `1 or more`, `more than 0`, or `at most 10`, with the
        numbers of the bound. Return None if the value is within the bound, is no number, or is NaN.
        """
        if not isinstance(value, int | float):
            return None
        if value < self.least or (self.is_open and value == self.least):
            return f"more than {self.least:g}" if self.is_open else f"{self.least:g} or more"
        return f"at most {self.most:.0f}" if value > self.most else None


_COUNT = _Bound(1, 2**31 - 1)
"""Bound of counts. Data planes store counts in 32 bits."""
_WAIT = _Bound(0)
_DELAY = _Bound(0, 366 * 86_400)
_PERIOD = _Bound(0, 366 * 86_400, is_open=True)
_BOUNDS: Mapping[str, _Bound] = {
    # Embedded logs accept twice as much, and the last message of a batch may exceed the limit.
    "batch_bytes": _Bound(1, 8 * 1024 * 1024),
    **dict.fromkeys(("batch_messages", "max_pending_messages", "queue_messages", "threads"), _COUNT),
    **dict.fromkeys(("held_limit", "max_deliveries", "most"), _COUNT),
    **dict.fromkeys(("timeout_seconds", "patience_seconds", "send_timeout_seconds"), _WAIT),
    **dict.fromkeys(("first_retry_seconds", "longest_retry_seconds", "delay_seconds"), _DELAY),
    **dict.fromkeys(("batch_delay_seconds", "key_counts_seconds"), _PERIOD),
    "call_timeout_seconds": _Bound(0.001, 86_400),  # sockets and PostgreSQL count milliseconds in 32 bits
}
"""Bounds by argument name. An argument name has the same bound in every call."""


def checks_arguments(kind: Checked) -> Checked:
    """Decorate a class so that its constructor and its public methods and class methods check their arguments, and
    return the class. Inherited members, properties and static methods are left unchanged. So are members that the
    class attribute `_guards_itself` names, because they check their arguments themselves.

    A call with an argument of a wrong type, or with a number beyond its bound in `_BOUNDS`, then raises InvalidInput
    before the method begins. Every argument of a checked method must have an annotation.
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


def checked(function: Function, *, has_self: bool = False, call: str | None = None) -> Function:
    """Return a wrapper of `function` that checks the arguments first. The wrapper raises InvalidInput for an argument
    of a wrong type, and for a number beyond its bound in `_BOUNDS`. The wrapper of an async function is async, and
    raises the error when its call is awaited. Every argument of `function` must have an annotation.

    If `has_self` is True, the first argument is not checked. `call` is the call as an application writes it, for
    messages; None: the text that `_call_of` returns.
    """
    demand = _Arguments(function, has_self=has_self, call=call or _call_of(function)).demand
    if is_awaited(function):

        @wraps(function)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            demand(arguments, named)
            return await function(*arguments, **named)

        return cast(Function, awaited)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        demand(arguments, named)
        return function(*arguments, **named)

    return cast(Function, called)


class _Arguments:
    """The arguments that one function accepts. Every argument must have an annotation. The annotations are
    resolved at the first call, when every module is loaded.
    """

    def __init__(self, function: Callable[..., Any], *, has_self: bool, call: str) -> None:
        """Store the function. If `has_self`, its first argument is not checked. `call` is the call as an
        application writes it, for messages.
        """
        self._function, self._has_self, self._call = function, has_self, call
        self._hints: Mapping[str, Any] = {}
        self._accepts: dict[str, Accepts] | None = None
        self._positional: list[str] = []
        self._variadic: str | None = None

    def demand(self, arguments: Sequence[object], named: Mapping[str, object]) -> None:
        """Raise InvalidInput for the first argument that has a wrong type, or is a number beyond its bound.
        `arguments` are the positional arguments of a call, including the `self` of a method, and `named` are the
        keyword arguments. Missing and surplus arguments are ignored, because the call itself raises TypeError for
        them. The first call resolves the annotations; a name in an annotation that cannot be resolved raises
        NameError.
        """
        accepts = self._resolved() if self._accepts is None else self._accepts
        names = (
            self._positional if self._variadic is None else chain(self._positional, repeat(self._variadic))
        )
        named_values = zip(names, arguments[1:] if self._has_self else arguments, strict=False)
        for name, value in chain(named_values, named.items()) if named else named_values:
            if name in accepts and not accepts[name](value):
                raise InvalidInput(f"{self._call}: {self._reason(name, value)}")

    def _resolved(self) -> dict[str, Accepts]:
        """Resolve the annotations, keep the checks, and return the check of each argument by name, without
        the first argument if `has_self`. A check includes the bound of the name in `_BOUNDS`.
        """
        parameters = [*signature(self._function).parameters.values()][int(self._has_self) :]
        in_order = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        self._hints = get_type_hints(self._function)
        self._positional = [parameter.name for parameter in parameters if parameter.kind in in_order]
        self._variadic = next(
            (parameter.name for parameter in parameters if parameter.kind is Parameter.VAR_POSITIONAL), None
        )
        self._accepts = {
            parameter.name: _within(parameter.name, _accepts(self._hints[parameter.name]))
            for parameter in parameters
        }
        return self._accepts

    def _reason(self, name: str, value: object) -> str:
        """Return the reason why the value is refused: its bound if its type is right, otherwise its type."""
        if _accepts(self._hints[name])(value):
            return f"{name} is {value}; give {_BOUNDS[name].advice(value)}"
        return _refusal(name, self._hints[name], value)


def _within(name: str, accepts: Accepts) -> Accepts:
    """Return a check that a value has the right type and is within the bound of the argument `name`, if there
    is a bound.
    """
    bound = _BOUNDS.get(name)
    return accepts if bound is None else lambda value: accepts(value) and bound.advice(value) is None


def _call_of(function: Callable[..., Any]) -> str:
    """Return the call as an application writes it: the name of the class for a constructor (`Client`), the last word of
    the class and the name for a method (`consumer.receive` for any kind of consumer), the name for a function.
    """
    *_, owner, name = ("", *function.__qualname__.split("."))
    if name == "__init__":
        return owner
    words = re.findall("[A-Z][a-z]*", owner)
    return f"{words[-1].lower()}.{name}" if words else name


def _refusal(name: str, hint: Any, value: Any) -> str:
    """Return the sentence that says why the type of `value` is wrong for the annotation `hint`. `name` names the
    argument in the sentence. For a mapping or a sequence with wrong content, the sentence names the first wrong key
    or item. The caller has found that the type is wrong.

    The value may be a secret, so the sentence shows its type only; the key or index of a wrong item is shown.
    """
    for option in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        origin, item_hints = get_origin(option), get_args(option)
        has_items = (
            isinstance(origin, type) and issubclass(origin, Mapping | Sequence) and origin is not tuple
        )
        if not has_items or not isinstance(value, origin) or isinstance(value, str | bytes):
            continue
        is_mapping = issubclass(origin, Mapping)
        for key in value if is_mapping else ():
            if not _accepts(item_hints[0])(key):
                return f"a key of {name} must be {_described(item_hints[0])}, not {_kind_of(key)}"
        for place, item in value.items() if is_mapping else enumerate(value):
            if not _accepts(item_hints[-1])(item):
                return _refusal(f"{name}[{shown(place)}]", item_hints[-1], item)
    return f"{name} must be {_described(hint)}, not {_kind_of(value)}"


def _accepts(hint: Any) -> Accepts:
    """Return a function that returns True if a value has the type `hint`, an annotation. The rules are:

    A whole number also has the type float; True, False and NaN are no numbers. The keys, values and items of a
    mapping or a sequence are checked, but not the items of a tuple or an iterable. Text and bytes are neither
    sequences nor iterables. A function whose call must be awaited is no Callable. Any object with the public members
    of a protocol has the type of the protocol. Any value has the type Any, object or a TypeVar.
    """
    origin = get_origin(hint)
    if hint is Any or hint is object or isinstance(hint, TypeVar):
        return lambda _value: True
    if origin in (Union, UnionType):
        checks = [_accepts(option) for option in get_args(hint)]
        return lambda value: any(accepts(value) for accepts in checks)
    if hint is float:
        return lambda value: _is_number(value, (int, float))
    if hint is int:
        return lambda value: _is_number(value, int)
    if origin is not None and issubclass(origin, Mapping | Sequence) and origin is not tuple:
        return _holds_only(origin, [_accepts(item_hint) for item_hint in get_args(hint)])
    if getattr(hint, "_is_protocol", False):
        members = [name for base in hint.__mro__ for name in vars(base) if _is_member(base, name)]
        return lambda value: all(hasattr(value, name) for name in members)
    kind = hint if origin is None else origin
    if kind is Callable:
        return lambda value: callable(value) and not is_asynchronous(value)
    return lambda value: isinstance(value, kind) and not (kind is Iterable and isinstance(value, str | bytes))


def is_asynchronous(value: object) -> bool:
    """Return True if the value is an async function or an async generator function, or an object whose `__call__` is
    one. An ordinary call of such a value would do nothing. A `functools.partial` counts as the function that it
    wraps. Any other value, also one that is not callable, gives False.
    """
    while isinstance(value, partial):
        value = value.func
    call = getattr(type(value), "__call__", None)  # noqa: B004 - the check needs the function, not the answer of `callable`
    return any(is_awaited(function) or isasyncgenfunction(function) for function in (value, call))


def _is_number(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Return True if the value has one of the types `kinds` and is neither a boolean nor NaN."""
    return isinstance(value, kinds) and not isinstance(value, bool) and not _is_nan(value)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _holds_only(kind: type, checks: Sequence[Accepts]) -> Accepts:
    """Return a function that returns True if a value is an instance of `kind`, a class of mappings or of sequences,
    and its content is accepted. For a mapping, `checks` contains one check for the keys and one for the values; for a
    sequence, one check for the items. Without `checks` any content is accepted. Text and bytes are not accepted.
    """

    def accepts(value: Any) -> bool:
        if not isinstance(value, kind) or isinstance(value, str | bytes):
            return False
        item_groups: Sequence[Any] = [value.keys(), value.values()] if isinstance(value, Mapping) else [value]
        return all(
            is_accepted(item)
            for is_accepted, item_group in zip(checks, item_groups, strict=False)
            for item in item_group
        )

    return accepts


def _is_member(protocol: Any, name: str) -> bool:
    """Return True if `name` is public and `protocol`, a base class of a hint, is itself a protocol."""
    return getattr(protocol, "_is_protocol", False) and not name.startswith("_")


def _described(hint: Any) -> str:
    """Return a description of the type `hint` for messages, in words that an application's developer knows: `a whole
    number or None`, `Sequence of str`. A type without such a word is described by its name.
    """
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_described, get_args(hint)))
    if origin is not None and issubclass(origin, Mapping | Sequence):
        return f"{origin.__name__} of {' to '.join(map(_described, get_args(hint)))}"
    kind = hint if origin is None else origin
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _kind_of(value: object) -> str:
    """Return a description of the value's type. The value may be a secret and is not shown."""
    if is_asynchronous(value):
        return "one that has to be awaited (async def)"
    return "nan" if _is_nan(value) else f"a value of type {type(value).__name__}"
