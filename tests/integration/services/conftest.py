"""A store, the embedded data plane and shorthands for the operation services, on a database of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bench import Bench
from tests.support.led_topic import LedTopic


@pytest.fixture
def led_topic(bench: Bench) -> Iterator[LedTopic]:
    """See `LedTopic`."""
    led_topic = LedTopic(bench)
    yield led_topic
    led_topic.stop()
