"""Every argument of every public call of the clients: what is of a wrong type is refused before anything is done with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter, isfunction, signature
from inspect import iscoroutinefunction as is_awaited
from typing import Any

import pytest

from controller.client.arguments import checked, checks_arguments
from controller.client.checkpoint import Checkpoint, merged
from controller.client.checkpoint_consumer import CheckpointConsumer
from controller.client.checkpoint_group import CheckpointGroupConsumer
from controller.client.dead_letters import DeadLetterReader, reading_dead_letters
from controller.client.exactly_once_table import PositionTable
from controller.client.http_source import HttpSource
from controller.client.keyed_work import KeyedWork
from controller.client.producer import Producer
from controller.client.queue_consumer import QueueConsumer
from controller.client.retry import retry_for
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.client.topic_watch import TopicWatch
from controller.domain.errors import InvalidInput
from controller.postgres_source import PostgresSource
from pulsar_cleave._asynchronous import AsyncClient, AsyncConsumer


async def later() -> None:
    """To be awaited."""


async def bit_by_bit() -> AsyncIterator[int]:
    """To be iterated over."""
    yield 1


class LaterClass:
    async def __call__(self) -> None:
        """To be awaited."""

    async def method(self) -> None:
        """To be awaited."""


CLASSES: Sequence[type] = (
    Producer,
    StreamConsumer,
    QueueConsumer,
    CheckpointConsumer,
    CheckpointGroupConsumer,
    Checkpoint,
    KeyedWork,
    DeadLetterReader,
    PositionTable,
    TopicWatch,
    Servers,
    HttpSource,
    PostgresSource,
    AsyncClient,
    AsyncConsumer,
)
FUNCTIONS = (merged, reading_dead_letters, retry_for)
NAN = float("nan")
OTHER = object()
WRONG: Mapping[str, Sequence[object]] = {
    "bytes": ("text", 7, None, {}, bytearray(b"x"), OTHER),
    "str": (b"bytes", 7, None, [], OTHER),
    "int": ("7", 7.5, True, None, [], OTHER),
    "float": ("7", True, NAN, None, [], OTHER),
    "bool": (1, 0.0, "yes", None, OTHER),
    "None": (),
    **dict.fromkeys(("Callable", "Change", "KeptValues"), (7, "text", None, {}, OTHER, later, LaterClass())),
    "Sequence[str]": ("text", b"bytes", 7, None, [7], OTHER),
    "Mapping[str, str]": ("text", [("a", "b")], {"a": 1}, {1: "a"}, OTHER),
    "Mapping[str, object]": ("text", [("a", "b")], {1: "a"}, OTHER),
    "Mapping[str, Any]": ("text", [("a", "b")], {1: "a"}, OTHER),
    "Sequence[tuple[int, int, int]]": ("text", 7, None, [7], OTHER),
    "Iterable[Checkpoint | bytes]": ("text", 7, None, OTHER),
    "Iterable[Checkpoint]": ("text", 7, None, OTHER),
    "Position": ("text", 7, [1, 2], OTHER),
    # Objects that only this library makes, or that offer what it asks for.
    **dict.fromkeys(
        (
            "Batch",
            "Checkpoint",
            "CheckpointBatch",
            "Claim",
            "DeadLetter",
            "LayoutSource",
            "LogClient",
            "LogReader",
            "Metadata",
            "PositionTable",
            "QueuedMessage",
            "Servers",
            "Start",
            "StreamConsumer",
            "datetime",
            "URL",
            "WorkObserver",
            "threading.Event",
            "frozenset[int]",
            "Mapping[int, Position | None]",
            "Mapping[int, int]",
        ),
        ("text", b"bytes", 7, ["text"], {"a": "b"}, OTHER),
    ),
}
"""Of each annotation what no argument of it may be."""
TAKES_ALL = {"Any", "object"}


def calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    """By its name, each call with the object that it is called on, which nothing was done with yet."""
    for kind in CLASSES:
        for name, member in vars(kind).items():
            if name != "__init__" and name.startswith("_"):
                continue
            if isinstance(member, classmethod):
                yield f"{kind.__name__}.{name}", getattr(kind, name)
            elif isfunction(member):
                yield f"{kind.__name__}.{name}", member.__get__(object.__new__(kind))
    yield "PollingConsumer.receive", QueueConsumer.receive.__get__(object.__new__(QueueConsumer))
    for function in FUNCTIONS:
        yield function.__name__, function


def wrong_values(annotation: str) -> list[object]:
    """What is none of the annotation's alternatives."""
    alternatives = _alternatives(annotation)
    if TAKES_ALL & set(alternatives):
        return []
    kinds = ("Callable" if one.startswith("Callable[") else one for one in alternatives if one != "None")
    wrong = [WRONG[kind] for kind in kinds]
    found = [value for value in wrong[0] if all(any(value is one for one in some) for some in wrong)]
    return [value for value in found if not (value is None and "None" in alternatives)]


def _alternatives(annotation: str) -> list[str]:
    """`a | b[c | d]` is a, and b[c | d]."""
    found, depth = [""], 0
    for char in annotation:
        depth += (char == "[") - (char == "]")
        if char == "|" and not depth:
            found.append("")
        else:
            found[-1] += char
    return [one.strip() for one in found]


def arguments() -> Iterator[Any]:
    for called, act in calls():
        parameters = signature(act).parameters.values()
        for one in parameters:
            for value in wrong_values(str(one.annotation)):
                yield pytest.param(act, one, value, id=f"{called}-{one.name}-{type(value).__name__}")


@pytest.mark.parametrize(("act", "parameter", "value"), [*arguments()])
def test_an_argument_of_a_wrong_type_is_refused(
    act: Callable[..., Any], parameter: Parameter, value: object
) -> None:
    is_rest = parameter.kind is Parameter.VAR_POSITIONAL
    given, named = ([value], {}) if is_rest else ([], {parameter.name: value})
    if act.__name__ == "send":
        named = {"payload": b"", **named}
    with pytest.raises(
        InvalidInput,
        match=rf"{parameter.name}(\[.+\])? must be .+, not (nan|a value of type|one that has to be awaited)",
    ):
        _call(act, given, named)


def _call(act: Callable[..., Any], given: Sequence[object], named: Mapping[str, object]) -> None:
    called = act(*given, **named)
    if is_awaited(act):
        asyncio.run(called)


def test_what_is_right_passes_as_it_is() -> None:
    seen: list[object] = []

    @checks_arguments
    class TakingClass:
        def take(self, first: int, *rest: float, named: Mapping[str, Sequence[str]] | None = None) -> None:
            seen.extend((first, rest, named))

    TakingClass().take(1, 2, 3.5, named={"a": ["b"]})

    assert seen == [1, (2, 3.5), {"a": ["b"]}]


def test_a_refusal_names_the_argument_and_shows_no_value() -> None:
    @checked
    def log_in(token: str | Callable[[], str]) -> None:
        raise AssertionError(token)

    with pytest.raises(
        InvalidInput, match=r"log_in: token must be str or a function, not a value of type bytes$"
    ):
        log_in(b"secret")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "handle",
    [later, bit_by_bit, LaterClass(), LaterClass().method, partial(later), partial(LaterClass())],
    ids=lambda one: type(one).__name__,
)
def test_a_function_that_has_to_be_awaited_is_refused_where_one_is_called(handle: Callable[..., Any]) -> None:
    with pytest.raises(
        InvalidInput, match=r"handle must be a function, not one that has to be awaited \(async def\)"
    ):
        KeyedWork(handle=handle)  # type: ignore[call-arg] # refused before anything is missed


@checks_arguments
class TakingConsumer:
    def take(self, properties: Mapping[str, str] | None, messages: int | Sequence[int] = 1) -> None:
        raise AssertionError(properties, messages)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (({"a": "x", "b": 1},), r"properties\['b'\] must be str, not a value of type int"),
        (({None: "x"},), "a key of properties must be str, not a value of type NoneType"),
        (([],), "properties must be Mapping of str to str or None, not a value of type list"),
        ((None, [1, "x"]), r"messages\[1\] must be a whole number, not a value of type str"),
        (
            (None, "x"),
            "messages must be a whole number or Sequence of a whole number, not a value of type str",
        ),
    ],
)
def test_a_refusal_names_the_item_and_the_call_as_it_is_written(
    arguments: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"^consumer\.take: {said}$"):
        TakingConsumer().take(*arguments)


def test_a_constructor_is_named_as_its_class() -> None:
    with pytest.raises(InvalidInput, match=r"^PositionTable: connect must be a function"):
        PositionTable("dsn")  # type: ignore[arg-type]
