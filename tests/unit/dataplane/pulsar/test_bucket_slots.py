"""What marks a bucket's messages, and that brokers of every version find the bucket by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.dataplane.log_client import OutgoingMessage
from controller.dataplane.pulsar import bucket_slots
from controller.dataplane.pulsar.bucket_slots import HASHES, belongs, demand_on_ring, marks, ordering_key
from controller.domain.errors import InvalidInput, Unsupported
from controller.domain.hash_range import FULL_RANGE, MAX_HASH, HashRange
from controller.domain.key_hash import KeyHash, key_hash

LOW, HIGH = FULL_RANGE.halves()


@given(st.integers(0, MAX_HASH), st.integers(0, MAX_HASH))
def test_the_slot_of_a_buckets_ordering_key_lies_in_it_and_is_not_0(one: int, other: int) -> None:
    bucket = HashRange(min(one, other), max(one, other, 1))

    key = ordering_key(bucket)

    assert bucket.contains(key_hash(key).bucket_hash)
    assert key_hash(key).bucket_hash > 0
    assert key.startswith(f"{bucket}.")
    assert ordering_key(bucket) == key


def test_a_bucket_that_no_entry_can_go_to_is_refused() -> None:
    with pytest.raises(Unsupported, match="fewer buckets"):
        ordering_key(HashRange(0, 0))


def test_a_batch_says_the_smallest_and_the_largest_hash_that_it_holds() -> None:
    batch = [OutgoingMessage(b"", bucket_hash=one) for one in (0x700, 0x12, 0x6000)]

    assert marks(LOW, batch) == (ordering_key(LOW), {HASHES: "0012-6000"})
    assert marks(LOW, [OutgoingMessage(b"")]).properties == {HASHES: "0000-0000"}
    mine = key_hash(b"k").bucket_hash
    assert marks(FULL_RANGE, [OutgoingMessage(b"", b"k")]).properties == {HASHES: f"{mine:04x}-{mine:04x}"}


def test_a_message_outside_the_bucket_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"0x8000.*0000-7fff"):
        marks(LOW, [OutgoingMessage(b""), OutgoingMessage(b"", bucket_hash=0x8000)])


@pytest.mark.parametrize("beyond", [-1, 0x10000])
def test_a_hash_beyond_the_ring_is_refused(beyond: int) -> None:
    with pytest.raises(InvalidInput):
        demand_on_ring([OutgoingMessage(b"", bucket_hash=beyond)])


def test_an_entry_belongs_where_all_of_it_lies() -> None:
    assert belongs(LOW, "0000-7fff")
    assert not belongs(LOW, "7fff-8000")
    assert not belongs(HIGH, "7fff-8000")
    assert belongs(LOW, "a stranger's own use of the name")


def test_no_ordering_key_has_slot_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers would take slot 1 for it, which may be the next bucket's."""
    hashes = iter([KeyHash(7, 0), KeyHash(7, 1)])
    monkeypatch.setattr(bucket_slots, "key_hash", lambda _key: next(hashes))

    assert ordering_key.__wrapped__(HashRange(0, 1)) == "0000-0001.1"
