"""The key hash against Pulsar's known answers and a second implementation of Murmur3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import InvalidInput
from controller.domain.key_hash import KeyHash, key_hash


def _murmur3(data: bytes) -> int:
    """Murmur3 x86 32-bit, seed 0, after the published algorithm."""

    def rotated(value: int, by: int) -> int:
        return (value << by | value >> (32 - by)) & 0xFFFFFFFF

    def scrambled(block: int) -> int:
        return rotated(block * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF

    whole = len(data) // 4 * 4
    h = 0
    for offset in range(0, whole, 4):
        h ^= scrambled(int.from_bytes(data[offset : offset + 4], "little"))
        h = (rotated(h, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= scrambled(int.from_bytes(data[whole:], "little")) ^ len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


@pytest.mark.parametrize(
    ("key", "segment_hash", "bucket_hash"), [("key1", 0x9B97, 0x0125), ("key2", 0x7371, 0x39B4)]
)
def test_pulsars_known_answers(key: str, segment_hash: int, bucket_hash: int) -> None:
    assert key_hash(key) == KeyHash(segment_hash, bucket_hash)


@given(st.binary(max_size=40))
def test_it_is_murmur3_with_the_high_half_for_segments(key: bytes) -> None:
    assert key_hash(key) == (_murmur3(key) >> 16, _murmur3(key) & 0xFFFF)


@given(st.text(max_size=20).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
def test_text_is_hashed_by_its_utf8_bytes(key: str) -> None:
    assert key_hash(key) == key_hash(key.encode())


@pytest.mark.parametrize("key", ["\ud800", "a\udfffb", "\udc00\ud800"])
def test_text_without_a_utf8_form_is_refused_by_name(key: str) -> None:
    """JSON can carry half of a surrogate pair; the library that hashes does not survive one."""
    with pytest.raises(InvalidInput, match=r"key .* half of a surrogate pair"):
        key_hash(key)
