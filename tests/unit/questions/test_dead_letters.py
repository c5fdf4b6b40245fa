"""The document of a dead letter."""

from __future__ import annotations

import pytest

from controller.client.dead_letters import DeadLetter, Origin
from controller.dataplane.log_client import LogMessage
from controller.questions.dead_letters import DeadLetterDocument


@pytest.mark.parametrize(
    ("published_at_ms", "published_at"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (253_402_300_800_000, None),
        (10**19, None),
        (10**30, None),
        (-(10**14), None),
    ],
    ids=["valid", "year 10000", "nanoseconds", "beyond the platform", "before year 1"],
)
def test_a_time_that_no_calendar_has_is_null(published_at_ms: int, published_at: str | None) -> None:
    """A producer's clock sets the time on Pulsar, and one wrong clock made the whole page fail."""
    origin = Origin(
        topic="topic://acme/shop/orders",
        subscription="billing",
        segment_id=0,
        position=(17,),
        published_at_ms=published_at_ms,
        deliveries=3,
        error=None,
        consumer="a",
        parked_at_ms=0,
    )
    stored = LogMessage((17,), b"{}", b"key", 0)

    document = DeadLetterDocument.of(DeadLetter(origin, b"key", b"{}", stored)).model_dump(mode="json")

    assert (document["published_at"], document["parked_at"]) == (published_at, "1970-01-01T00:00:00Z")
