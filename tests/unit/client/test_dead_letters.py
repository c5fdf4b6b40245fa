"""A dead letter as it is stored, and as it is read back."""

from __future__ import annotations

import threading

import pytest

from controller.client.dead_letters import DeadLetter, DeadLetterReader, Origin
from controller.dataplane.log_client import LogMessage
from controller.domain.errors import CleaveError, DataPlaneUnavailable, LostRace
from tests.support.scripted_reader import ScriptedReader

ORIGIN = Origin(
    topic="topic://acme/shop/orders",
    subscription="billing",
    segment_id=3,
    position=(7, 8, 0),
    published_at_ms=1_700_000_000_000,
    deliveries=10,
    error="ValueError: größer\nals erlaubt",
    consumer="a",
    parked_at_ms=1_700_000_000_001,
)


@pytest.mark.parametrize("payload", [b"", b"\n", b"first\nsecond", b"\xff\x00", b'{"topic": "x"}\n'])
def test_payload_and_origin_come_back_whatever_they_hold(payload: bytes) -> None:
    letter = DeadLetter.of(LogMessage((0,), 0, b"k", ORIGIN.written(payload)))

    assert (letter.origin, letter.key, letter.payload) == (ORIGIN, b"k", payload)


@pytest.mark.parametrize("stored", [b"", b"plain", b"{}\nx", b'{"topic": 1}\nx', b"\xff\n"])
def test_what_another_program_put_there_is_taken_as_it_is(stored: bytes) -> None:
    letter = DeadLetter.of(LogMessage((0,), 0, None, stored))

    assert (letter.origin, letter.payload) == (None, stored)


@pytest.mark.parametrize("error", [DataPlaneUnavailable("injected"), LostRace("injected", 0.0)], ids=type)
def test_letters_that_were_read_before_an_error_are_returned(error: CleaveError) -> None:
    """An acknowledgement of a later letter would also acknowledge the letters that the error dropped."""
    reader = DeadLetterReader(ScriptedReader(b"1", error, b"2"), threading.Event())

    assert [letter.payload for letter in reader.read(2, timeout_seconds=0.0)] == [b"1"]
    assert [letter.payload for letter in reader.read(1, timeout_seconds=0.0)] == [b"2"]


def test_an_error_before_the_first_letter_is_raised() -> None:
    script = ScriptedReader(DataPlaneUnavailable("injected"), b"1")
    reader = DeadLetterReader(script, threading.Event())

    with pytest.raises(DataPlaneUnavailable, match="injected"):
        reader.read(2, timeout_seconds=0.0)
    assert [letter.payload for letter in reader.read(2, timeout_seconds=0.0)] == [b"1"]
