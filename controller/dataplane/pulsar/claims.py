"""Who must let go before a cursor, or one entry bucket of it, can be taken on a broker, and how that comes about.

Where the subscription has one consumer, moving the cursor to where it is cuts that one off. Where consumers share it by
key, no call to a broker cuts off one of them alone, and moving the cursor would end the reading of all and bring back
what they acknowledged. Then the claim itself settles it: before a broker (3.0 and later) refuses a range that somebody
has, it makes sure that the other's connection answers, and lets go of it when there is no answer within 5 s
(`connectionLivenessCheckTimeoutMillis`). Readers of this very process are closed here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

from controller.dataplane.base import Ownership
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.cursors import Cursors, Holder
from controller.dataplane.pulsar.reader import PulsarReader
from controller.domain.errors import CleaveError, FencedOut, LostRace
from controller.domain.hash_range import HashRange

FOREIGN_DELAY_SECONDS, HELD_DELAY_SECONDS = 5.0, 0.2
DEAD_DELAY_SECONDS = (0.3, 1.2)
"""Between tries for what a dead owner's connection still holds; drawn, so that several claims do not meet."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody wants a cursor, or `bucket` of it."""

    backing_topic: str
    subscription: str
    owner: str
    live_owners: Collection[str]
    bucket: HashRange | None
    ownership: Ownership | None = None

    @property
    def _what(self) -> str:
        return (
            repr(self.subscription) if self.bucket is None else f"{self.subscription!r}, bucket {self.bucket}"
        )

    def demand_gone(self, holder: Holder) -> None:
        """Demand that the holder may be cut off. Raises LostRace where it is alive, or is not Cleave's, FencedOut where it is the newer
        owner.
        """
        if holder.owner is None:
            raise LostRace(
                f"{self.backing_topic}: a consumer at {holder.address} that is not Cleave's reads for "
                f"{self._what}; close it or use another subscription",
                delay_seconds=FOREIGN_DELAY_SECONDS,
            )
        if self.ownership is not None and holder.ownership is not None and holder.ownership > self.ownership:
            raise FencedOut(
                f"{self.backing_topic}: {holder.owner} took a part of {self._what} under a newer assignment; this process is the "
                "stale one and must follow its leader"
            )
        if holder.owner != self.owner and holder.owner in self.live_owners:
            raise LostRace(
                f"{self.backing_topic}: {holder.owner!r} still reads for {self._what}; try again when it lets go",
                delay_seconds=HELD_DELAY_SECONDS,
            )

    def taken(self, holder: Holder) -> CleaveError:
        """What a reader of this process is told whose part goes to this claim."""
        if holder.owner == self.owner:
            return FencedOut(
                f"{self.backing_topic}: a newer reader named {self.owner!r} takes {self._what}; this one is stale and "
                "must stop"
            )
        return LostRace(
            f"{self.backing_topic}: {self.owner!r} takes {self._what}, since {holder.owner!r} counts as gone; open a new "
            "reader",
            delay_seconds=0.0,
        )

    def still_connected(self, holder: Holder) -> LostRace:
        """The error while a broker keeps the connection of somebody who counts as gone."""
        return LostRace(
            f"{self.backing_topic}: {holder.owner!r} at {holder.address} counts as gone, but the broker keeps its "
            f"connection for {self._what} until that answers no more; try again, or end that process",
            delay_seconds=random.uniform(*DEAD_DELAY_SECONDS),  # noqa: S311 - no secret
        )

    def outrun(self) -> LostRace:
        """The error where somebody took it between the look and the try."""
        return LostRace(
            f"{self.backing_topic}: another reader for {self._what} was faster; try again",
            delay_seconds=HELD_DELAY_SECONDS,
        )


def make_way(
    cursors: Cursors,
    claim: Claim,
    reader_here: Callable[[str | None], PulsarReader | None],
    deadline: Deadline,
) -> Holder | None:
    """Cut off whoever is in the way of the claim and counts as gone. Somebody whom only the broker can cut off is
    returned.

    Raises LostRace where one of them is alive. `reader_here` finds the reader of this process with that mark.
    """
    topic, subscription = claim.backing_topic, claim.subscription
    found = cursors.attachments(topic, subscription, deadline)
    in_the_way = found.in_the_way_of(claim.bucket)
    for holder in in_the_way:
        claim.demand_gone(holder)
    if found.is_shared:
        in_the_way = tuple(one for one in in_the_way if not _gave_way(claim, one, reader_here(one.reader)))
    if not in_the_way:
        return None
    if found.is_shared:
        if claim.bucket is not None:
            return in_the_way[0]
        if not cursors.is_contiguous(topic, subscription, deadline):
            raise claim.still_connected(in_the_way[0])
    cursors.cut_off(topic, subscription, deadline)
    return None


def _gave_way(claim: Claim, holder: Holder, reader: PulsarReader | None) -> bool:
    if reader is None:
        return False
    reader.give_way(claim.taken(holder))
    return True
