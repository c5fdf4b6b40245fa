"""What a forked child process may use of the objects that its parent made.

A fork copies every object, but no thread, and the copies share the parent's sockets. A copy that is used as it is sends on a connection
that the parent sends on, under the parent's identity, waits for threads that do not exist, or for a lock that such a thread held. Two
kinds of objects are safe instead. A `Renewed` one begins again in the child, with connections and locks of the child's own. A `OneProcess`
one refuses every call in the child with one sentence, and its `close` there does nothing, since what it would close is the parent's.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from ctypes import py_object, pythonapi
from functools import wraps
from inspect import iscoroutinefunction as is_awaited
from inspect import isfunction
from typing import Any, ClassVar, Self
from weakref import WeakSet

from controller.domain.errors import Terminal

PAGE = "docs/how-to/preforking-servers.md"


class Process:
    """One process. Compare by identity: the system uses ids of ended processes again."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()


class _Forked:
    """An object that is told when it is in a forked child."""

    def __new__(cls, *_arguments: Any, **_named: Any) -> Self:
        made = super().__new__(cls)
        _made.add(made)
        return made

    def _begin_in_child(self) -> None:
        """Called in the child before the fork returns, with no other thread running. Must take no lock of before the fork."""
        raise NotImplementedError


class Renewed(_Forked, ABC):
    """Base of objects that a child may use as its parent does."""

    @abstractmethod
    def _begin_in_child(self) -> None:
        """Replace connections and locks, and close none: the parent uses them."""


class OneProcess(_Forked):
    """Base of objects that only the process that made them may use.

    Elsewhere public methods and properties raise Terminal, and the methods named in `_endings` return at once. Nothing of the object is
    freed there: a library's object that is freed waits for its threads, which are the parent's, or ends what the parent uses.
    """

    _endings: ClassVar[frozenset[str]] = frozenset({"close"})
    _guards_itself: ClassVar[frozenset[str]] = frozenset()
    """Methods that call `_demand_maker` where it costs least."""
    _maker: Process

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        made = super().__new__(cls, *arguments, **named)
        made._maker = _current
        return made

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name, member in list(vars(cls).items()):
            if name.startswith("_") or name in cls._guards_itself:
                continue
            if isinstance(member, property) and member.fget is not None:
                setattr(cls, name, member.getter(_guarded(cls, name, member.fget)))
            elif isfunction(member):
                setattr(cls, name, _guarded(cls, name, member))

    def _described(self) -> str:
        """Return the object's kind, and where it helps its name, for the refusal."""
        return type(self).__name__

    def _begin_in_child(self) -> None:
        pythonapi.Py_IncRef(py_object(self))

    def _demand_maker(self) -> None:
        """Raise Terminal in another process than the object's."""
        if self._maker is not _current:
            raise self._refusal()

    def _refusal(self) -> Terminal:
        return Terminal(
            f"this {self._described()} was made in process {self._maker.pid} and is used in process {_current.pid}: make one after the "
            f"fork, in each process; see {PAGE}"
        )


def current() -> Process:
    """Return the process that this code runs in."""
    return _current


def _guarded(cls: type[OneProcess], name: str, act: Callable[..., Any]) -> Callable[..., Any]:
    """Return `act`, refused in other processes than the object's."""
    is_ending = name in cls._endings
    if is_awaited(act):

        @wraps(act)
        async def awaited(self: OneProcess, *arguments: Any, **named: Any) -> Any:
            if self._maker is _current:
                return await act(self, *arguments, **named)
            if not is_ending:
                raise self._refusal()
            return None

        return awaited

    @wraps(act)
    def called(self: OneProcess, *arguments: Any, **named: Any) -> Any:
        if self._maker is _current:
            return act(self, *arguments, **named)
        if not is_ending:
            raise self._refusal()
        return None

    return called


def _begin() -> None:
    """In a child: the process is another one, and each object hears of it."""
    global _current  # noqa: PLW0603
    _current = Process()
    for one in list(_made):
        with suppress(AttributeError):  # half made when its process forked: nothing in the child has it
            one._begin_in_child()


_current = Process()
_made: WeakSet[_Forked] = WeakSet()
os.register_at_fork(after_in_child=_begin)
