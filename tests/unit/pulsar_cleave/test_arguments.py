"""Every public call refuses arguments of a wrong type with InvalidInput, and does nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, get_type_hints

import pytest

import pulsar_cleave as cleave
from pulsar_cleave._arguments import checked, demand

WORKER = "http://127.0.0.1:1"
CLASSES = (
    cleave.Client,
    cleave.StreamConsumer,
    cleave.QueueConsumer,
    cleave.CheckpointConsumer,
    cleave.KeyedWork,
    cleave.DeadLetters,
)


class Wrong:
    """Of no type that any argument has; a protocol takes it."""


def calls() -> list[tuple[type, str, str]]:
    """Each argument of each public method that takes any."""
    found: list[tuple[type, str, str]] = []
    for cls in CLASSES:
        for name, member in inspect.getmembers(cls, inspect.isfunction):
            if name.startswith(("_", "async_")):
                continue
            hints = get_type_hints(inspect.unwrap(member))
            found += [
                (cls, name, argument)
                for argument in inspect.signature(member).parameters
                if argument not in ("self", "schema") and hints[argument] is not Any
            ]
    return found


@pytest.mark.parametrize(
    ("cls", "method", "argument"), calls(), ids=lambda one: getattr(one, "__name__", one)
)
def test_a_wrong_type_is_invalid_input(cls: type, method: str, argument: str) -> None:
    form = inspect.signature(getattr(cls, method)).parameters
    good: dict[str, Any] = {"topic": "a/b/c", "subscription": "s", "name": "n", "namespace": "a/b"}
    good |= {"handle": print, "is_stopping": bool, "messages": (), "most": 1, "checkpoint": b""}
    given = {name: good[name] for name, one in form.items() if one.default is one.empty and name in good}
    nobody: Any = object.__new__(cls)  # nothing of it is touched

    with pytest.raises(cleave.InvalidInput, match=rf"^{argument} is <"):
        getattr(nobody, method)(**{**given, argument: Wrong()})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 7, "token": "t"}, "workers is 7; give str"),
        ({"workers": WORKER, "token": b"t"}, "token is b't'"),
        ({"workers": WORKER, "token": "t", "pulsar": "token"}, "pulsar is 'token'; give PulsarAuth"),
        ({"workers": WORKER, "token": "t", "call_timeout_seconds": True}, "call_timeout_seconds is True"),
        ({"workers": WORKER, "token": "t", "timeout": 3}, "timeout"),
        ({"workers": WORKER}, "token"),
        ({"workers": "", "token": "t"}, "no address of a worker"),
    ],
)
def test_a_client_is_made_of_the_right_types(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(cleave.InvalidInput, match=message):
        cleave.Client(**arguments)


@pytest.mark.parametrize("topic", ["", "a//c", "topic://a/b", "http://a/b/c", "a/b/c d"])
def test_what_is_no_topic_is_refused_before_anything_is_asked(topic: str) -> None:
    with cleave.Client(WORKER, "token") as client, pytest.raises(cleave.InvalidInput):
        client.producer(topic)


class Sends:
    """Stands for the inner producer, which is tested with real logs elsewhere."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send(self, *message: Any) -> None:
        self.sent.append(message)


@pytest.mark.parametrize(
    "message",
    [
        {"value": {}},
        {"value": "text"},
        {"value": None},
        {"value": b"x", "key": 7},
        {"value": b"x", "properties": [("a", "b")]},
        {"value": b"x", "properties": {"a": 1}},
        {"value": b"x", "properties": {1: "a"}},
        {"value": b"x", "properties": {"": "a"}},
        {"value": b"x", "properties": {"cleave.key": "a"}},
        {"value": b"x", "properties": {"a": "\0"}},
        {"value": b"x", "properties": {"a": "\ud800"}},
        {"value": b"x", "properties": {"a": "b" * 32 * 1024}},
        {"value": b"x", "event_time": 7},
        {"value": b"x", "event_time": datetime(2026, 1, 1)},  # noqa: DTZ001 - that is what is wrong
        {"value": b"x", "event_time": datetime(1969, 1, 1, tzinfo=UTC)},
    ],
    ids=str,
)
def test_a_message_of_the_wrong_types_is_not_queued(message: dict[str, Any]) -> None:
    inner = Sends()

    with pytest.raises(cleave.InvalidInput):
        cleave.Producer(inner, None).send(**message)  # type: ignore[arg-type]
    assert inner.sent == []


def test_a_value_that_the_schema_refuses_is_not_queued() -> None:
    from pulsar.schema import StringSchema

    inner = Sends()
    producer = cleave.Producer(inner, StringSchema())  # type: ignore[arg-type]
    with pytest.raises(cleave.InvalidInput, match="StringSchema refuses the value b'x'"):
        producer.send(b"x")
    producer.send("x")
    assert inner.sent == [(b"x", None, None)]


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (float, [1, 1.5], [True, "1", None]),
        (int, [1], [True, 1.5]),
        (str | None, ["", None], [b"", 0]),
        (Callable[[], str], [str, print], ["", None]),
        (cleave.Message | tuple[cleave.Message, ...], [()], [(1,), 7]),
        (Any, [1, None], []),
    ],
)
def test_annotations_are_what_is_demanded(hint: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        demand("it", value, hint)
    for value in bad:
        with pytest.raises(cleave.InvalidInput, match=r"^it is "):
            demand("it", value, hint)


def test_a_call_that_does_not_fit_the_signature_is_invalid_input() -> None:
    @checked
    def act(one: int) -> int:
        return one

    assert act(3) == 3
    with pytest.raises(cleave.InvalidInput, match="unexpected keyword argument 'two'"):
        act(one=1, two=2)  # type: ignore[call-arg]
