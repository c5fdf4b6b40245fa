"""Entry buckets on brokers that know nothing of them: which slots a bucket has, and what marks its messages.

A broker with a Key_Shared subscription hands out whole entries. It takes an entry's ordering key, reduces its hash to a
*slot* and gives the entry to the consumer whose sticky range holds that slot. The slots of a bucket are the numbers of
its bucket hashes, so buckets that tile 0..65535 have ranges that tile the slots. Every message of a bucket carries the
same ordering key, whose slot lies in the bucket, and a property with the smallest and the largest bucket hash of what
was appended with it. The application's key stays the partition key.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count

from controller.dataplane.base import OutgoingMessage
from controller.domain.errors import InvalidInput, InvalidRange, Unsupported
from controller.domain.hash_range import HashRange, hexadecimal
from controller.domain.key_hash import key_hash

HASHES = "cleave.hashes"
"""Property of a message: the bucket hashes of its batch, `0000-0fff`."""
_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_MASK = 0xFFFFFFFF
_MOST_BUCKETS_KEPT = 65536


def slot_of(ordering_key: str) -> int:
    """The slot, 1..65535, that brokers from 4.0 on give to an entry with this ordering key."""
    return _slots_of(key_hash(ordering_key).legacy_hash)[0]


def older_slot_of(ordering_key: str) -> int:
    """The slot, 0..65535, that brokers before 4.0 give to it."""
    return _slots_of(key_hash(ordering_key).legacy_hash)[1]


@lru_cache(_MOST_BUCKETS_KEPT)
def ordering_key(bucket: HashRange) -> str:
    """The ordering key of a bucket's entries: 16 characters, which begin with the bucket's bounds.

    Its slot lies in the bucket for brokers of every version. A bucket of one hash has such a key only for brokers from
    4.0 on, and `0000-0000` for none: Unsupported.
    """
    if bucket.end == 0:
        raise Unsupported(
            "bucket 0000-0000 holds slot 0 only, which brokers give to no entry; cut the segment into fewer buckets"
        )
    wanted = _hashes_within(bucket)
    for number in count():
        start = f"{bucket}{number:03x}".encode()[-12:]
        end = _ending(start, wanted[number % len(wanted)])
        if _LETTERS.issuperset(end):
            return (start + end).decode()
    raise AssertionError("some ending is text")


def marks(bucket: HashRange, messages: Sequence[OutgoingMessage]) -> Mapping[str, str]:
    """The property that each of these messages carries. Raises InvalidInput where one lies outside the bucket."""
    hashes = [bucket_hash_of(message) for message in messages]
    low, high = min(hashes), max(hashes)
    for found in (low, high):
        if not bucket.contains(found):
            raise InvalidInput(
                f"a message with bucket hash {hexadecimal(found)} does not belong to bucket {bucket}; append it to its own"
            )
    return {HASHES: str(HashRange(low, high))}


def bucket_hash_of(message: OutgoingMessage) -> int:
    """See `OutgoingMessage`."""
    if message.bucket_hash is not None:
        return message.bucket_hash
    return key_hash(message.key).bucket_hash if message.key else 0


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


def _slots_of(legacy_hash: int) -> tuple[int, int]:
    return legacy_hash % 65535 + 1, legacy_hash % 65536


def _hashes_within(bucket: HashRange) -> Sequence[int]:
    """Hashes below 65536 whose slots lie in the bucket. Both formulas give such a hash slots that differ by one."""
    if bucket.start == bucket.end:
        return range(bucket.start - 1, bucket.start)
    return range(bucket.start, bucket.end)


def _ending(start: bytes, wanted: int) -> bytes:
    """The four bytes after these twelve that give the whole the hash `wanted`: Murmur3 taken backwards."""
    state = 0
    for (block,) in struct.iter_unpack("<I", start):
        state = (_turned(state ^ _mixed(block), 13) * 5 + 0xE6546B64) & _MASK
    after = _unfinished(wanted) ^ (len(start) + 4)
    before = _turned((after - 0xE6546B64) * pow(5, -1, 1 << 32) & _MASK, 19)
    return struct.pack("<I", _unmixed(before ^ state))


def _mixed(block: int) -> int:
    return _turned(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _unmixed(mixed: int) -> int:
    block = _turned(mixed * pow(0x1B873593, -1, 1 << 32) & _MASK, 17)
    return block * pow(0xCC9E2D51, -1, 1 << 32) & _MASK


def _unfinished(wanted: int) -> int:
    """What Murmur3's last rounds made the hash of."""
    found = wanted ^ wanted >> 16
    found = found * pow(0xC2B2AE35, -1, 1 << 32) & _MASK
    found ^= found >> 13 ^ found >> 26
    found = found * pow(0x85EBCA6B, -1, 1 << 32) & _MASK
    return found ^ found >> 16


def _turned(word: int, bits: int) -> int:
    """Rotated to the left, 32 bits."""
    return (word << bits | word >> 32 - bits) & _MASK
