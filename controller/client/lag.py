"""How far behind a subscription is, as a worker counts it: of all that is to be read, whoever reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.client.servers import path_part, topic_path


@dataclass(frozen=True, slots=True)
class BucketLag:
    """How many messages of a bucket are not acknowledged, whoever reads it; of a whole segment where `bucket` is None."""

    segment_id: int
    """Segment of the topic."""
    bucket: str | None
    """Range of hashes of the entry bucket, such as `0000-3fff`; None: the whole segment."""
    owners: tuple[str, ...]
    """Consumers that own the bucket."""
    messages: int | None
    """Number of messages that are not acknowledged; None if the data plane could not count, and `error` says why."""
    error: str | None
    """Why the messages could not be counted."""


def lag_path(topic: str, subscription: str) -> str:
    """Where it is asked for."""
    return f"{topic_path(topic)}/subscriptions/{path_part(subscription)}/lag"


def lag_of(answer: Mapping[str, Any]) -> tuple[BucketLag, ...]:
    """Return the lag of each bucket in a worker's answer."""
    return tuple(
        BucketLag(row["segment_id"], row["bucket"], tuple(row["owners"]), row["messages"], row["error"])
        for row in answer["buckets"]
    )
