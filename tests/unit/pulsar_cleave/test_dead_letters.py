"""Dead letters as an application receives them."""

from __future__ import annotations

import threading

from controller.client.dead_letters import DeadLetterReader
from controller.domain.errors import DataPlaneUnavailable
from pulsar_cleave._work import DeadLetters
from tests.support.scripted_reader import ScriptedReader


def test_a_letter_that_was_read_before_an_error_is_received() -> None:
    """Otherwise the acknowledgement of the second letter also acknowledges the first, which nobody saw."""
    script = ScriptedReader(b"1", DataPlaneUnavailable("injected"), b"2")
    letters = DeadLetters(DeadLetterReader(script, threading.Event()), "topic://acme/shop/orders", None)

    received = [letter.message.data for _ in range(2) for letter in letters.receive_many(2)]

    assert received == [b"1", b"2"]
