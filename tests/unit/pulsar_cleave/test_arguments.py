"""Every public call refuses arguments of a wrong type with InvalidInput, and does nothing."""

from __future__ import annotations

import inspect
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import pulsar_cleave as cleave
from pulsar_cleave._logs import Logs

WORKER = "http://127.0.0.1:1"
CLASSES = (
    cleave.Client,
    cleave.StreamConsumer,
    cleave.QueueConsumer,
    cleave.CheckpointConsumer,
    cleave.KeyedWork,
    cleave.DeadLetters,
)


class WrongType:
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
                if argument != "self" and hints[argument] is not Any
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

    with pytest.raises(
        cleave.InvalidInput, match=rf"{method}: {argument} must be .*, not a value of type WrongType"
    ):
        getattr(nobody, method)(**{**given, argument: WrongType()})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 7, "token": "t"}, "workers must be str or Sequence of str"),
        ({"workers": WORKER, "token": b"t"}, "token must be str or a function"),
        ({"workers": WORKER, "token": "t", "pulsar": "token"}, "pulsar must be PulsarAuth or None"),
        (
            {"workers": WORKER, "token": "t", "call_timeout_seconds": True},
            "call_timeout_seconds must be a number",
        ),
        ({"workers": "", "token": "t"}, "no address of a worker"),
    ],
)
def test_a_client_is_made_of_the_right_types(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(cleave.InvalidInput, match=message):
        cleave.Client(**arguments)


GOOD: dict[str, Any] = {
    "topic": "a/b/c",
    "subscription": "s",
    "name": "n",
    "handle": print,
    "messages": (),
    "workers": WORKER,
    "token": "t",
}
LIMITS = (
    "batch_messages",
    "max_pending_messages",
    "queue_messages",
    "most",
    "threads",
    "held_limit",
    "max_deliveries",
)
COUNTS = ("batch_bytes", *LIMITS)
WAITS = ("timeout_seconds", "patience_seconds", "send_timeout_seconds")
DELAYS = ("first_retry_seconds", "longest_retry_seconds", "delay_seconds")
PERIODS = ("batch_delay_seconds", "key_counts_seconds")
CALLS = ("call_timeout_seconds",)
BEYOND: list[tuple[tuple[str, ...], float, str]] = [
    (COUNTS, -1, "1 or more"),
    (COUNTS, 0, "1 or more"),
    (LIMITS, 2**31, "at most 2147483647"),
    (("batch_bytes",), 8 * 1024 * 1024 + 1, "at most 8388608"),
    (WAITS, -0.1, "0 or more"),
    (DELAYS, -0.1, "0 or more"),
    (DELAYS, math.inf, "at most 31622400"),
    (PERIODS, -1, "more than 0"),
    (PERIODS, 0, "more than 0"),
    (PERIODS, math.inf, "at most 31622400"),
    (CALLS, -1, "0.001 or more"),
    (CALLS, 0, "0.001 or more"),
    (CALLS, math.inf, "at most 86400"),
]
"""Arguments, a number that they cannot be, and what to give instead."""


def numeric_arguments() -> list[tuple[type, str, str]]:
    """Each argument of each public method that is a number."""
    every = [*calls(), (cleave.Client, "__init__", "call_timeout_seconds")]
    hints = [get_type_hints(inspect.unwrap(getattr(cls, method)))[name] for cls, method, name in every]
    found = zip(every, hints, strict=True)
    return [one for one, hint in found if any(kind in (hint, *get_args(hint)) for kind in (int, float))]


def test_every_number_has_a_bound() -> None:
    assert {one[2] for one in numeric_arguments()} == {one for names, _, _ in BEYOND for one in names}


def numbers_beyond() -> list[Any]:
    return [
        pytest.param(*one, number, advice, id=f"{one[1]}-{one[2]}-{number}")
        for one in numeric_arguments()
        for names, number, advice in BEYOND
        if one[2] in names
    ]


@pytest.mark.parametrize(("cls", "method", "argument", "number", "advice"), numbers_beyond())
def test_a_number_beyond_its_bound_is_refused_before_anything_is_asked(
    cls: type, method: str, argument: str, number: float, advice: str
) -> None:
    form = inspect.signature(getattr(cls, method)).parameters
    given = {name: GOOD[name] for name, one in form.items() if one.default is one.empty and name in GOOD}
    nobody: Any = object.__new__(cls)  # nothing of it is touched

    call = "Client" if method == "__init__" else method
    with pytest.raises(cleave.InvalidInput, match=rf"{call}: {argument} is {number}; give {advice}$"):
        getattr(nobody, method)(**{**given, argument: number})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"token_file": "/nope"}, "^token_file=/nope: there is no such file"),
        ({"token": "two words"}, "^token contains spaces"),
        ({"token": 7}, "^token is a value of type int"),
        ({"cert_file": __file__}, "set cert_file and key_file together"),
        ({"encryption_key": "k"}, "set encryption_key and encryption_public_key_file together"),
    ],
)
def test_credentials_are_named_as_the_arguments(given: dict[str, Any], message: str) -> None:
    with pytest.raises(cleave.InvalidInput, match=message):
        cleave.PulsarAuth(**given)


def test_a_token_file_that_vanished_is_named_as_the_argument(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("token")
    logs = Logs(None, cleave.PulsarAuth(token_file=str(file)), None, 5.0)  # type: ignore[arg-type]
    found = {"admin_url": "http://broker:8080", "service_url": "pulsar://broker:6650"}
    access = logs._settings("topic://a/b/c", "pulsar", found).pulsar
    file.unlink()

    assert access is not None
    with pytest.raises(cleave.InvalidInput, match=f"^token_file={file} cannot be read"):
        access.current_token()


@pytest.mark.parametrize("topic", ["", "a//c", "topic://a/b", "http://a/b/c", "a/b/c d"])
def test_what_is_no_topic_is_refused_before_anything_is_asked(topic: str) -> None:
    with cleave.Client(WORKER, "token") as client, pytest.raises(cleave.InvalidInput):
        client.producer(topic)


class RecordedSends:
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
    inner = RecordedSends()

    with pytest.raises(cleave.InvalidInput):
        cleave.Producer(inner, None).send(**message)  # type: ignore[arg-type]
    assert inner.sent == []


def test_a_wrong_property_is_named_with_the_call() -> None:
    with pytest.raises(cleave.InvalidInput, match=r"^producer\.send: properties\['a'\] must be str, not"):
        cleave.Producer(RecordedSends(), None).send(b"x", properties={"a": 1})  # type: ignore[arg-type, dict-item]


def test_a_value_that_the_schema_refuses_is_not_queued() -> None:
    from pulsar.schema import StringSchema

    inner = RecordedSends()
    producer = cleave.Producer(inner, StringSchema())  # type: ignore[arg-type]
    with pytest.raises(cleave.InvalidInput, match="StringSchema refuses the value b'x'"):
        producer.send(b"x")
    producer.send("x")
    assert inner.sent == [(b"x", None, None)]
