"""Deliveries that are counted over crashes, as a consumer says them to a worker.

A message that kills its process would come again for ever if deaths did not count. But to note every message before it is
handled costs a call each. So nothing is noted where nothing is wrong. A consumer makes one call when it begins to read a bucket: it
says at which first message. A bucket that `TROUBLED_OPENINGS` lives of consumers in turn opened at the same message, without getting
beyond it and without an end in good order, is in trouble. From there on, for as many messages as can have been in hand, each
is noted before it is begun, and nothing else runs in the process meanwhile: if it dies, the note is the only one that is left, and the
death is charged to that very message. A message whose handling failed is noted too, and before each further delivery.

The notes are rows that any worker writes, for the bucket's present owner only (sql/schema/26_deliveries.sql), by the first hash of what it owns. Where
that was a bucket and is a run of them by now, the notes still tell of the same messages: a position is one of the whole segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from controller.client.session import OwnedBucket
from controller.dataplane.base import Position
from controller.domain.deliveries import DeliveryEvent

TROUBLED_OPENINGS = 3
"""With one or two a restart or a hand-over may have come before anything was done."""


class KnownMessage(msgspec.Struct, frozen=True):
    """A message that is in trouble, as earlier lives left it."""

    position: tuple[int, ...]
    deliveries: int
    deaths: int
    error: str | None


class Opening(msgspec.Struct, frozen=True):
    """What is known of a bucket when its reading begins."""

    openings: int
    messages: tuple[KnownMessage, ...]

    @property
    def is_troubled(self) -> bool:
        """Whether its messages are to be noted one by one."""
        return self.openings >= TROUBLED_OPENINGS


# Made here: two threads that decode a type for the first time end the process.
_OPENING = msgspec.json.Decoder(Opening)


class DeliveryCounts:
    """For any thread. Every call raises StoreUnavailable while no worker answers, and LostRace for a bucket that is not owned."""

    def __init__(self, ask: Callable[[str, Mapping[str, object]], Any]) -> None:
        """`ask` asks a worker as this consumer; `StreamConsumer.ask`."""
        self._ask = ask

    def opened(self, owned: OwnedBucket, position: Position) -> Opening:
        """Reading begins at this message."""
        found = self._ask("opened", {**_named(owned), "position": position})
        return msgspec.convert(found, _OPENING.type)

    def closed(self, owned: OwnedBucket) -> None:
        """Reading has ended in good order."""
        self._ask("closed", _named(owned))

    def note(
        self,
        owned: OwnedBucket,
        position: Position,
        event: DeliveryEvent,
        deliveries: int,
        error: str | None = None,
    ) -> None:
        """What happens to a message in its n-th delivery. Said twice it counts once."""
        said = {"position": position, "event": event.value, "deliveries": deliveries, "error": error}
        self._ask("deliveries", {**_named(owned), **said})


def _named(owned: OwnedBucket) -> dict[str, object]:
    return {
        "segment_id": owned.segment_id,
        "bucket_start": owned.bucket_start,
        "generation": owned.generation,
    }
