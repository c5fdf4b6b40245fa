"""Decides which consumers must be disconnected before a cursor, or one entry bucket of it, can be taken on a
broker, and disconnects them.

A consumer that is connected for the cursor, or for a part of it, is a *holder*. A holder is *live* if
the claim names its owner in `live_owners`; otherwise the holder counts as gone. A holder with the claim's own owner
name always counts as gone: it is a stale connection or an earlier process.

If the subscription has one consumer, moving the cursor to its present position disconnects the consumer. If
consumers share the subscription by key, no broker call disconnects a single one, and moving the cursor would
disconnect all and redeliver what they have acknowledged. Then subscribing itself resolves the conflict:
before a broker (3.0 and later) refuses a range that another consumer has, it checks that consumer's
connection, and drops the consumer if there is no response within 5 s
(`connectionLivenessCheckTimeoutMillis`). Readers of this process are closed directly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

from controller.dataplane.log_client import Ownership
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.cursors import Cursors, Holder
from controller.dataplane.pulsar.library_errors import CONSUMER_LIMIT_ADVICE, CONSUMER_LIMIT_REACHED
from controller.dataplane.pulsar.reader import PulsarReader
from controller.domain.errors import CleaveError, FencedOut, LostRace
from controller.domain.hash_range import HashRange

FOREIGN_DELAY_SECONDS, HELD_DELAY_SECONDS = 5.0, 0.2
DEAD_DELAY_SECONDS = (0.3, 1.2)
"""Bounds of the random delay between two attempts for a range that a dead owner's connection still holds. The
delay is random so that several claims do not collide.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """A request of `owner` for a cursor, or for `bucket` (a range of bucket hashes; None: the whole cursor) of it.
    A holder whose owner is in `live_owners` keeps the cursor, unless its owner is `owner`; another holder counts
    as gone. A holder with a later `ownership` is never disconnected; None: ownerships are not compared.
    """

    backing_topic: str
    subscription: str
    owner: str
    live_owners: Collection[str]
    bucket: HashRange | None
    ownership: Ownership | None = None

    @property
    def _subject(self) -> str:
        """The subscription and the bucket, as messages name them."""
        return (
            repr(self.subscription) if self.bucket is None else f"{self.subscription!r}, bucket {self.bucket}"
        )

    def demand_gone(self, holder: Holder) -> None:
        """Raise an error if the claim may not disconnect the holder; return otherwise. Disconnects nothing.

        LostRace is raised if the holder is not a reader of Cleave (`owner` None). FencedOut is raised if the holder
        and the claim both have an ownership and the holder's is later, even if both have the same owner name.
        LostRace is also raised if the holder's owner is among `live_owners` and is not the claim's own owner.
        """
        if holder.owner is None:
            raise LostRace(
                f"{self.backing_topic}: a consumer at {holder.address} that is not Cleave's reads for "
                f"{self._subject}; close it or use another subscription",
                delay_seconds=FOREIGN_DELAY_SECONDS,
            )
        if self.ownership is not None and holder.ownership is not None and holder.ownership > self.ownership:
            raise FencedOut(
                f"{self.backing_topic}: {holder.owner} took a part of {self._subject} under a newer assignment; this process is the "
                "stale one and must follow its leader"
            )
        if holder.owner != self.owner and holder.owner in self.live_owners:
            raise LostRace(
                f"{self.backing_topic}: {holder.owner!r} still reads for {self._subject}; try again after it has released the cursor",
                delay_seconds=HELD_DELAY_SECONDS,
            )

    def eviction_error(self, holder: Holder) -> CleaveError:
        """Return, without raising it, the error that a reader of this process raises after its part went to this
        claim. `holder` is that reader. The error is FencedOut if the reader has the claim's own owner name, otherwise
        LostRace.
        """
        if holder.owner == self.owner:
            return FencedOut(
                f"{self.backing_topic}: a newer reader named {self.owner!r} takes {self._subject}; this one is stale and "
                "must stop"
            )
        return LostRace(
            f"{self.backing_topic}: {self.owner!r} takes {self._subject}, since {holder.owner!r} counts as gone; open a new "
            "reader",
            delay_seconds=0.0,
        )

    def still_connected_error(self, holder: Holder) -> LostRace:
        """Return the error for a broker that keeps the connection of `holder`, whose owner counts as gone."""
        return LostRace(
            f"{self.backing_topic}: {holder.owner!r} at {holder.address} counts as gone, but the broker keeps its "
            f"connection for {self._subject} while it responds; try again, or end that process",
            delay_seconds=random.uniform(*DEAD_DELAY_SECONDS),  # noqa: S311 - no secret
        )

    def lost_error(self) -> LostRace:
        """Return the error for a cursor that the broker refuses although the check found no holder in the way."""
        return LostRace(
            f"{self.backing_topic}: another reader for {self._subject} was faster, or {CONSUMER_LIMIT_REACHED}; try again, "
            f"or {CONSUMER_LIMIT_ADVICE}",
            delay_seconds=HELD_DELAY_SECONDS,
        )


def evict_holders(
    cursors: Cursors,
    claim: Claim,
    reader_here: Callable[[str | None], PulsarReader | None],
    deadline: Deadline,
) -> Holder | None:
    """Disconnect the holders (connected consumers) that are in the way of the claim. A holder is in the way if it
    overlaps the claim's bucket, or if the subscription is of the other type (shared by key, or not). Nothing is
    disconnected if `Claim.demand_gone` raises an error for a holder in the way.

    Return None if no holder in the way is left. If the claim is for a bucket and the subscription is shared by key,
    only readers of this process are disconnected, and one of the holders of other processes is returned. Only the
    broker can disconnect such a holder, while the claim subscribes. In all other cases holders that are left are
    disconnected by a move of the cursor to its present position, which disconnects all consumers of the subscription.

    `reader_here` returns the open reader of this process with a mark; None if there is none. Raises the errors of
    `Claim.demand_gone`; LostRace also if a move of the cursor would undo acknowledgements of single messages;
    SegmentNotFound; SubscriptionNotFound; DataPlaneTimeout at the deadline; and the other errors of `AdminCalls.ask`.
    """
    topic, subscription = claim.backing_topic, claim.subscription
    attached = cursors.attachments(topic, subscription, deadline)
    in_the_way = attached.in_the_way_of(claim.bucket)
    for holder in in_the_way:
        claim.demand_gone(holder)
    if attached.is_shared:
        in_the_way = tuple(
            holder for holder in in_the_way if not _evict_if_here(claim, holder, reader_here(holder.reader))
        )
    if not in_the_way:
        return None
    if attached.is_shared:
        if claim.bucket is not None:
            return in_the_way[0]
        if not cursors.is_contiguous(topic, subscription, deadline):
            raise claim.still_connected_error(in_the_way[0])
    cursors.cut_off(topic, subscription, deadline)
    return None


def _evict_if_here(claim: Claim, holder: Holder, reader: PulsarReader | None) -> bool:
    """If the holder is a reader of this process, evict this reader, and return True. `reader` is this reader; None if
    the holder is in another process: then do nothing, and return False.

    The evicted reader releases the cursor before this function returns. Its later calls raise the error of
    `Claim.eviction_error`, unless its reading had ended before for another reason (`PulsarReader.evict`).
    """
    if reader is None:
        return False
    reader.evict(claim.eviction_error(holder))
    return True
