"""A dead letter as it is stored, and as it is read back."""

from __future__ import annotations

import pytest

from controller.client.dead_letters import DeadLetter, Origin
from controller.dataplane.log_client import LogMessage

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
