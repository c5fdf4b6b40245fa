"""Objects that stay safe in forked child processes.

A fork copies every object, but no thread, and the copies share the parent's sockets. A copy would send on a connection that the parent
sends on, under the parent's identity, wait for threads that do not exist, or wait for a lock that such a thread held. Two kinds of
objects are safe instead. A `Renewed` object begins again in the child, with connections and locks of the child's own. A `OneProcess`
object refuses every call in the child with one sentence; its `close` does nothing there, because the connections are the parent's.
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
    """An object that is notified in a forked child."""

    def __new__(cls, *_arguments: Any, **_named: Any) -> Self:
        """Create the object, and register it for the call of `_begin_in_child` after a fork."""
        made = super().__new__(cls)
        _made.add(made)
        return made

    def _begin_in_child(self) -> None:
        """Called in the child before the fork returns, while no other thread runs. It must not take a lock from before the fork."""
        raise NotImplementedError


class Renewed(_Forked, ABC):
    """Base of objects that a child may use as its parent does."""

    @abstractmethod
    def _begin_in_child(self) -> None:
        """Replace connections and locks. Close none of them, because the parent uses them."""


class OneProcess(_Forked):
    """Base of objects that only the process that created them may use.

    In other processes public methods and properties raise Terminal, and the methods named in `_endings` return at once. Other processes
    free nothing of the object: freeing a library's object would wait for threads of the parent, or end something that the parent uses.
    """

    _endings: ClassVar[frozenset[str]] = frozenset({"close"})
    _guards_itself: ClassVar[frozenset[str]] = frozenset()
    """Methods that call `_demand_maker` themselves, at the point where the check costs least."""
    _maker: Process

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Create the object as an object of the current process."""
        made = super().__new__(cls, *arguments, **named)
        made._maker = _current
        return made

    def __init_subclass__(cls, **named: Any) -> None:
        """Wrap the public methods and properties of the subclass so that they check the process, except methods in `_guards_itself`."""
        super().__init_subclass__(**named)
        for name, member in list(vars(cls).items()):
            if name.startswith("_") or name in cls._guards_itself:
                continue
            if isinstance(member, property) and member.fget is not None:
                setattr(cls, name, member.getter(_guarded(cls, name, member.fget)))
            elif isfunction(member):
                setattr(cls, name, _guarded(cls, name, member))

    def _described(self) -> str:
        """Return the object's kind for the error message, with its name if it has one."""
        return type(self).__name__

    def _begin_in_child(self) -> None:
        """Keep the object for ever in the child, so that the child never frees it."""
        pythonapi.Py_IncRef(py_object(self))

    def _demand_maker(self) -> None:
        """Raise Terminal in any process but the object's own."""
        if self._maker is not _current:
            raise self._refusal()

    def _refusal(self) -> Terminal:
        """Return the error for a use in another process."""
        return Terminal(
            f"this {self._described()} was made in process {self._maker.pid} and is used in process {_current.pid}: make one after the "
            f"fork, in each process; see {PAGE}"
        )


def current() -> Process:
    """Return the current process."""
    return _current


def _guarded(cls: type[OneProcess], name: str, act: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `act` so that it raises Terminal in any process but the object's own. A method in `_endings` returns None there instead."""
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
    """Set the current process in a child, and call `_begin_in_child` of each object that was completely constructed."""
    global _current  # noqa: PLW0603
    _current = Process()
    for made in list(_made):
        with suppress(
            AttributeError
        ):  # the object was half constructed at the fork, so nothing in the child refers to it
            made._begin_in_child()


_current = Process()
_made: WeakSet[_Forked] = WeakSet()
os.register_at_fork(after_in_child=_begin)
