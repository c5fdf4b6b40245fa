"""Where a key lands: the segment by the high half of its hash, the entry bucket by the low half.

Murmur3 x86 32-bit, seed 0, over the UTF-8 bytes, exactly as Pulsar's Java clients do it (PIP-468, PIP-486): a
difference here would break key order as soon as two clients share a topic. PIP-475's text takes the lower half for
segments; Pulsar's code takes the high half, and so does this.
"""

from __future__ import annotations

from typing import NamedTuple

import mmh3

from controller.domain.errors import InvalidInput
from controller.domain.utf8 import utf8


class KeyHash(NamedTuple):
    """Both halves of one key's hash, each 0..65535 and independent of the other."""

    segment_hash: int
    bucket_hash: int

    @property
    def legacy_hash(self) -> int:
        """The 31-bit form old clients take modulo the partition count; only for all-legacy layouts."""
        return (self.segment_hash << 16 | self.bucket_hash) & 0x7FFFFFFF


def key_hash(key: str | bytes) -> KeyHash:
    """The hash of one message key; text is hashed by its UTF-8 bytes. Raises InvalidInput as `key_bytes` does."""
    raw = mmh3.hash(key_bytes(key), 0, signed=False)
    return KeyHash(raw >> 16, raw & 0xFFFF)


def key_bytes(key: str | bytes) -> bytes:
    """What is hashed and stored of a key. Raises InvalidInput for text with a lone surrogate, which ends mmh3's process, and for anything
    but text and bytes.
    """
    if isinstance(key, str):
        return utf8(key, "key")
    if not isinstance(key, bytes):
        raise InvalidInput(f"a key of type {type(key).__name__}; give text or bytes")
    return key
