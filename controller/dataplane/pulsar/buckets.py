"""Entry buckets on brokers that know nothing of them: which slots a bucket has, and what marks its messages.

A broker with a Key_Shared subscription hands out whole entries. The *slot* of an entry is the low half of the hash of its
ordering key, or of its key where it has no ordering key, and it goes to the consumer whose sticky range holds the slot.
So slots are bucket hashes: buckets that tile 0..65535 have ranges that tile the slots, and a message that somebody else
sends alone goes to the bucket of its key. Slot 0 is the exception: from 4.0 on, brokers take slot 1 for it. (Where
consumers have no sticky ranges, brokers reckon slots in another way.)

An entry's first message carries the bucket's ordering key, whose slot lies in the bucket, and a property with the smallest
and the largest bucket hash of what was appended with it: the broker takes the entry's key from there, and a reader the
mark. Where it is not known which message will be the first of an entry, each carries them. The application's key stays
the partition key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count

from controller.dataplane.base import OutgoingMessage
from controller.dataplane.pulsar.messages import EntryMarks
from controller.domain.errors import InvalidInput, InvalidRange, Unsupported
from controller.domain.hash_range import MAX_HASH, HashRange, hexadecimal
from controller.domain.key_hash import key_hash

HASHES = "cleave.hashes"
"""Property of a message: the bucket hashes of its batch, `0000-0fff`."""
_MOST_BUCKETS_KEPT = 65536


@lru_cache(_MOST_BUCKETS_KEPT)
def ordering_key(bucket: HashRange) -> str:
    """The ordering key of a bucket's entries, `0000-0fff.1a`. Found by trying: 65536 divided by the bucket's width.

    Unsupported for `0000-0000`, to which brokers give nothing.
    """
    if bucket.end == 0:
        raise Unsupported(
            f"bucket {bucket} holds slot 0 only, which brokers give to no entry; cut the segment into fewer buckets"
        )
    slots = HashRange(max(1, bucket.start), bucket.end)
    return next(key for n in count() if slots.contains(key_hash(key := f"{bucket}.{n:x}").bucket_hash))


def marks(bucket: HashRange, messages: Sequence[OutgoingMessage]) -> EntryMarks:
    """What tells of these messages. Raises InvalidInput where one lies outside the bucket."""
    hashes = _bucket_hashes(messages)
    low, high = min(hashes), max(hashes)
    for found in (low, high):
        if not bucket.contains(found):
            raise InvalidInput(
                f"a message with bucket hash {hexadecimal(found)} does not belong to bucket {bucket}; append it to its own"
            )
    return EntryMarks(ordering_key(bucket), {HASHES: str(HashRange(low, high))})


def demand_on_ring(messages: Sequence[OutgoingMessage]) -> None:
    """Raises InvalidInput for a bucket hash outside 0..65535, whether or not the segment has several buckets."""
    hashes = _bucket_hashes(messages)
    for found in (min(hashes), max(hashes)):
        if not 0 <= found <= MAX_HASH:
            raise InvalidInput(f"bucket hash {hexadecimal(found)} is not on the ring; give 0 to {MAX_HASH}")


def _bucket_hashes(messages: Sequence[OutgoingMessage]) -> list[int]:
    """See `OutgoingMessage`."""
    return [
        (key_hash(key).bucket_hash if key else 0) if bucket_hash is None else bucket_hash
        for _, key, bucket_hash, _ in messages
    ]


@lru_cache(_MOST_BUCKETS_KEPT)
def belongs(bucket: HashRange, marked: str) -> bool:
    """Whether an entry with this property lies in the bucket. One that cannot be read is a stranger's, whose slot
    decides.
    """
    try:
        found = HashRange.parse(marked)
    except InvalidRange:
        return True
    return bucket.start <= found.start and found.end <= bucket.end
