"""Maps entry buckets to slots of brokers that do not know buckets, and defines the marks of a bucket's
messages.

A broker with a Key_Shared subscription delivers whole entries. The *slot* of an entry is the low half of the
hash of its ordering key, or of its key without an ordering key. The consumer whose sticky range contains the
slot receives the entry. Slots are thus bucket hashes: buckets that tile 0 to 65535 have ranges that tile the
slots, and a single message of another program goes to the bucket of its key. Slot 0 is an exception: from 4.0
on, brokers use slot 1 instead. (If consumers have no sticky ranges, brokers compute slots differently.)

An entry's first message carries the bucket's ordering key, whose slot is in the bucket, and a property with
the smallest and the largest bucket hash of the appended messages. The broker takes the entry's key from
there, and a reader the mark. The application's key remains the partition key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count

from controller.dataplane.log_client import OutgoingMessage
from controller.dataplane.pulsar.messages import EntryMarks
from controller.domain.errors import InvalidInput, InvalidRange, Unsupported
from controller.domain.hash_range import MAX_HASH, HashRange, hexadecimal
from controller.domain.key_hash import key_hash

HASHES = "cleave.hashes"
"""Property of a message: the bucket hashes of its batch, `0000-0fff`."""
_MOST_BUCKETS_KEPT = 65536


@lru_cache(_MOST_BUCKETS_KEPT)
def ordering_key(bucket: HashRange) -> str:
    """Return the ordering key of a bucket's entries: the bucket and a hexadecimal number, `0000-0fff.1a`, whose
    hash is a slot of the bucket. The same bucket always has the same key. Found by trial, with about 65536
    divided by the bucket's width attempts.

    Raises Unsupported for `0000-0000`, to which brokers deliver nothing.
    """
    if bucket.end == 0:
        raise Unsupported(
            f"bucket {bucket} contains only slot 0, which brokers assign to no entry; divide the segment into fewer buckets"
        )
    slots = HashRange(max(1, bucket.start), bucket.end)
    return next(key for n in count() if slots.contains(key_hash(key := f"{bucket}.{n:x}").bucket_hash))


def marks(bucket: HashRange, messages: Sequence[OutgoingMessage]) -> EntryMarks:
    """Return the marks of an entry with these messages: the ordering key of the bucket, and the property `HASHES`
    with the smallest and the largest bucket hash of the messages. There must be at least one message. The bucket hash
    of a message that gives none is the hash of its key; 0 without a key.

    Raises InvalidInput if a message's hash lies outside the bucket, and Unsupported for bucket `0000-0000`
    (`ordering_key`).
    """
    hashes = _bucket_hashes(messages)
    low, high = min(hashes), max(hashes)
    for bucket_hash in (low, high):
        if not bucket.contains(bucket_hash):
            raise InvalidInput(
                f"a message with bucket hash {hexadecimal(bucket_hash)} does not belong to bucket {bucket}; append it to its own"
            )
    return EntryMarks(ordering_key(bucket), {HASHES: str(HashRange(low, high))})


def demand_on_ring(messages: Sequence[OutgoingMessage]) -> None:
    """Raise InvalidInput if a message gives a bucket hash outside 0 to 65535. There must be at least one message.
    Used for a segment with only one bucket, where `marks` does not check the hashes.
    """
    hashes = _bucket_hashes(messages)
    for bucket_hash in (min(hashes), max(hashes)):
        if not 0 <= bucket_hash <= MAX_HASH:
            raise InvalidInput(
                f"bucket hash {hexadecimal(bucket_hash)} is not on the ring; give 0 to {MAX_HASH}"
            )


def _bucket_hashes(messages: Sequence[OutgoingMessage]) -> list[int]:
    """Return the bucket hash of each message, as `OutgoingMessage` defines it."""
    return [
        (key_hash(key).bucket_hash if key else 0) if bucket_hash is None else bucket_hash
        for _, key, bucket_hash, _ in messages
    ]


@lru_cache(_MOST_BUCKETS_KEPT)
def belongs(bucket: HashRange, marked: str) -> bool:
    """Return True if all marked hashes of an entry, written `0000-0fff`, lie in the bucket. Also True for an
    unreadable mark, which another program wrote: the broker has delivered the entry by its slot.
    """
    try:
        hashes = HashRange.parse(marked)
    except InvalidRange:
        return True
    return bucket.start <= hashes.start and hashes.end <= bucket.end
