"""Where a log's load lies: the keys of its newest messages, read without anybody's position."""

from __future__ import annotations

from collections import Counter

import pytest

from controller.dataplane.optional_abilities import LONGEST_KEY_BYTES, KeySample, SamplesKeys
from controller.domain.errors import SegmentNotFound, SegmentTerminated
from controller.domain.key_hash import key_hash
from tests.support.planes import Planes

pytestmark = pytest.mark.integration


def sample(planes: Planes, log: str, most: int = 100) -> KeySample:
    assert isinstance(planes.plane, SamplesKeys)
    return planes.plane.sample_keys(log, most=most)


def hash_of(key: bytes) -> int:
    return key_hash(key).segment_hash


def test_it_has_a_hash_a_message_in_and_out_of_batches(planes: Planes) -> None:
    log = planes.log("s")
    planes.send(log, b"1", b"2", b"3", key=b"hot")
    planes.send(log, b"4", key="kühl".encode())
    planes.send(log, b"5", key=b"\xff\x00")  # no text

    found = sample(planes, log)

    assert Counter(found.hashes) == {hash_of(b"hot"): 3, hash_of("kühl".encode()): 1, hash_of(b"\xff\x00"): 1}
    assert found.keyless == 0


@pytest.mark.parametrize(
    ("keyless", "without", "key"),
    [
        ((b"1", b"2"), None, b"k"),
        ((b"1",), b"k" * (LONGEST_KEY_BYTES + 1), b"k" * LONGEST_KEY_BYTES),
    ],
    ids=["no key", "a key that is far too long"],
)
def test_messages_without_a_usable_key_are_only_counted(
    planes: Planes, keyless: tuple[bytes, ...], without: bytes | None, key: bytes
) -> None:
    log = planes.log()
    planes.send(log, *keyless, key=without)
    planes.send(log, b"3", key=key)

    assert sample(planes, log) == KeySample((hash_of(key),), len(keyless))


def test_of_many_the_newest_are_taken(planes: Planes) -> None:
    log = planes.log()
    for key in (b"old", b"old", b"new", b"new"):
        planes.send(log, *[b"x"] * 10, key=key)

    assert set(sample(planes, log, most=20).hashes) == {hash_of(b"new")}
    assert Counter(sample(planes, log, most=30).hashes) == {hash_of(b"old"): 10, hash_of(b"new"): 20}


def test_it_moves_no_subscription_and_is_none(planes: Planes) -> None:
    log = planes.log("s")
    planes.send(log, b"1", b"2", key=b"k")

    assert len(sample(planes, log).hashes) == 2

    assert planes.plane.backlog(log, "s") == 2
    assert planes.plane.list_subscriptions(log) == ["s"]
    assert planes.drain(log, "s") == [b"1", b"2"]
    assert len(sample(planes, log).hashes) == 2


def test_an_empty_log_has_no_keys(planes: Planes) -> None:
    assert sample(planes, planes.log()) == KeySample((), 0)


def test_a_missing_log_and_a_closed_one_are_named(planes: Planes) -> None:
    with pytest.raises(SegmentNotFound):
        sample(planes, planes.plane.backing_topic(planes.topic(), "0000-ffff-0"))
    closed = planes.log()
    planes.send(closed, b"1", key=b"k")
    planes.plane.terminate_segment(closed)
    with pytest.raises(SegmentTerminated):
        sample(planes, closed)
