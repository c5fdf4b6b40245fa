"""Reads the lag of a subscription, as a worker counts it: of all segments and buckets, whichever consumer
reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.client.servers import Servers, path_part, topic_path


@dataclass(frozen=True, slots=True)
class BucketLag:
    """The number of unacknowledged messages of a bucket, whichever consumer reads it; of a whole segment if
    `bucket` is None.
    """

    segment_id: int
    """Segment of the topic."""
    bucket: str | None
    """Range of hashes of the entry bucket, such as `0000-3fff`; None: the whole segment."""
    owners: tuple[str, ...]
    """Consumers that own the bucket."""
    messages: int | None
    """Number of messages that are not acknowledged; None if the data plane could not count, and `error` says why."""
    error: str | None
    """Reason why the messages could not be counted."""


def lag_of(servers: Servers, topic: str, subscription: str) -> tuple[BucketLag, ...]:
    """Request from a worker the number of unacknowledged messages of every bucket of the subscription, and return it.
    Raises InvalidInput for a name as `topic_path` and `path_part` do; StoreUnavailable, or the worker's refusal.
    """
    answer = servers.ask("GET", f"{topic_path(topic)}/subscriptions/{path_part(subscription)}/lag")
    return tuple(
        BucketLag(row["segment_id"], row["bucket"], tuple(row["owners"]), row["messages"], row["error"])
        for row in answer["buckets"]
    )
