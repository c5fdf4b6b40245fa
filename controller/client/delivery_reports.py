"""Reports deliveries to a worker, so that they are counted across crashes of consumers.

A message that kills its process would be delivered forever if deaths did not count. But a report before each
message would cost one call per message, so a healthy bucket has no reports of messages. A consumer makes one
call when it starts to read a bucket, with the position of the first message. A bucket is in trouble if
`TROUBLED_OPENINGS` consecutive processes started at the same message, without progress and without closing
the bucket. Then each message is reported before its processing begins, for as many messages as can have been
unacknowledged, and the process runs nothing else meanwhile. If the process dies, only one report is open, so
the death is charged to that message. A message that was charged with a death is reported and processed in
the same way until it is done.

A failure is reported too. A retry is reported before it begins only if the process runs nothing else: if
several messages run and the process dies, each death would count for all of them, and messages would become
dead letters because of another message.

Workers store the reports as rows for the bucket's present owner only (sql/schema/26_deliveries.sql), by the
first hash of the owned range. If the range has since changed from one bucket to several, the reports still
identify the same messages, because a position refers to the whole segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from controller.client.session import OwnedBucket
from controller.dataplane.log_client import Position
from controller.domain.delivery_events import DeliveryEvent

TROUBLED_OPENINGS = 3
"""Number of openings at the same message that put a bucket in trouble. One or two may be due to a restart or
a change of owner.
"""


class KnownMessage(msgspec.Struct, frozen=True):
    """A message in trouble, as earlier processes reported it: the number of its deliveries that have begun,
    the number of processes that died during a delivery, and its last error (None: none was recorded).
    """

    position: tuple[int, ...]
    deliveries: int
    deaths: int
    error: str | None


class Opening(msgspec.Struct, frozen=True):
    """The stored counts of a bucket when its reading begins."""

    openings: int
    """Number of consecutive processes, including this one, that began to read the bucket at the same
    message.
    """
    messages: tuple[KnownMessage, ...]

    @property
    def is_troubled(self) -> bool:
        """True if the messages of the bucket are to be reported before their processing begins."""
        return self.openings >= TROUBLED_OPENINGS


# The decoder is created here because two threads that first decode a type at the same time end the process.
_OPENING = msgspec.json.Decoder(Opening)


class DeliveryCounts:
    """Reports of one consumer. Safe to use from any thread.

    Every call raises StoreUnavailable while no worker responds, or the worker's refusal: `opened` and `note`
    raise LostRace for a bucket that the consumer does not own.
    """

    def __init__(self, ask: Callable[[str, Mapping[str, object]], Any]) -> None:
        """Create the object. `ask` sends a worker a request of this consumer (`StreamConsumer.ask`)."""
        self._ask = ask

    def opened(self, owned: OwnedBucket, position: Position) -> Opening:
        """Report to a worker that reading begins at this message, and return the stored counts of the bucket,
        including this opening, which counts once if the process repeats the call. Each message that another
        process began and did not end is charged with a death first; counts of earlier messages are deleted.
        """
        answer = self._ask("opened", {**_ownership(owned), "position": position})
        return msgspec.convert(answer, _OPENING.type)

    def closed(self, owned: OwnedBucket) -> None:
        """Report that the consumer has closed the bucket without a crash, which resets `openings` to 1."""
        self._ask("closed", _ownership(owned))

    def note(
        self,
        owned: OwnedBucket,
        position: Position,
        event: DeliveryEvent,
        deliveries: int,
        error: str | None = None,
    ) -> None:
        """Report an event of the message's n-th delivery to a worker; n is `deliveries`. `error` is the text
        of a failure; None keeps the stored text. ENDED deletes the stored counts of the message. Idempotent.
        """
        report = {"position": position, "event": event.value, "deliveries": deliveries, "error": error}
        self._ask("deliveries", {**_ownership(owned), **report})


def _ownership(owned: OwnedBucket) -> dict[str, object]:
    """Return the fields of a request that identify this ownership of the bucket."""
    return {
        "segment_id": owned.segment_id,
        "bucket_start": owned.bucket_start,
        "generation": owned.generation,
    }
