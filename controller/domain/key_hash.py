"""Hash of a message key: the high half selects the segment, the low half the entry bucket.

Murmur3 x86 32-bit, seed 0, over the UTF-8 bytes, exactly as Pulsar's Java clients compute it (PIP-468, PIP-486): a
difference would break key order as soon as two clients share a topic. PIP-475's text uses the lower half for
segments; Pulsar's code uses the high half, and so does this module.
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


def key_hash(key: str | bytes) -> KeyHash:
    """Return the hash of one message key; text is hashed by its UTF-8 bytes. Raises InvalidInput for text with a lone
    surrogate, and for a value that is neither text nor bytes.
    """
    raw = mmh3.hash(key_bytes(key), 0, signed=False)
    return KeyHash(raw >> 16, raw & 0xFFFF)


def key_bytes(key: str | bytes) -> bytes:
    """Return the bytes of a key that are hashed and stored. Raises InvalidInput for text with a lone surrogate, which
    would terminate mmh3's process, and for a value that is neither text nor bytes.
    """
    if isinstance(key, str):
        return utf8(key, "key")
    if not isinstance(key, bytes):
        raise InvalidInput(f"a key cannot be of type {type(key).__name__}; give text or bytes")
    return key
