"""Which messages of an entry are a bucket's, whoever sent it."""

from __future__ import annotations

import base64
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from controller.dataplane.pulsar.bucket_filter import BucketFilter
from controller.dataplane.pulsar.bucket_slots import HASHES
from controller.dataplane.pulsar.message_runs import Run
from controller.domain.hash_range import FULL_RANGE, HashRange
from controller.domain.key_hash import key_hash

LOW, HIGH = FULL_RANGE.halves()


def _keys(bucket: HashRange, many: int) -> list[str]:
    """Keys whose hashes lie there, none of which is base64."""
    found = (key for n in count() if bucket.contains(key_hash(key := f"key-{n}").bucket_hash))
    return [next(found) for _ in range(many)]


def _bytes_key(bucket: HashRange) -> str:
    """In base64 as it travels: the hash of the bytes lies in the bucket, that of the text does not."""
    for n in count():
        key = n.to_bytes(6, "big")
        text = base64.b64encode(key).decode()
        if bucket.contains(key_hash(key).bucket_hash) and not bucket.contains(key_hash(text).bucket_hash):
            return text
    raise AssertionError


def _message(key: str = "", ordering_key: str = "", **properties: str) -> Any:
    return SimpleNamespace(
        partition_key=lambda: key, ordering_key=lambda: ordering_key, properties=lambda: properties
    )


def _sorted(*messages: Any, first_index: int = 0, entry: int = 1, asked: BucketFilter | None = None) -> str:
    """`+` for each of the lower half's own, `-` for each other, by their places."""
    run = Run((7, entry), first_index, messages, is_batched=True)
    ours, others = (asked or BucketFilter(LOW)).sort(run)
    told = {
        one.first_index + at: sign
        for sign, some in (("+", ours), ("-", others))
        for one in some
        for at in range(len(one))
    }
    return "".join(told[at] for at in sorted(told))


OWN, OTHER = _keys(LOW, 2), _keys(HIGH, 1)[0]
OWN_BYTES, OTHER_BYTES = _bytes_key(LOW), _bytes_key(HIGH)
TOLD = {
    "each message of a batch by its key": (
        [_message(OWN[0]), _message(OTHER), _message(OWN[1])],
        0,
        "+-+",
    ),
    "all messages of a batch": ([_message(OWN[0]), _message(OWN[1])], 0, "++"),
    "a message of another bucket": ([_message(OTHER)], 0, "-"),
    "without a key there is no order to keep": ([_message(), _message()], 0, "++"),
    "an ordering key before the key": (
        [_message(OTHER, ordering_key=OWN[0]), _message(OWN[0], ordering_key=OTHER)],
        0,
        "+-",
    ),
    "Cleave's mark alone": ([_message(OTHER, **{HASHES: "0000-0fff"}), _message(OTHER)], 0, "++"),
    "Cleave's mark of another bucket": ([_message("", **{HASHES: "9000-9fff"}), _message("")], 0, "--"),
    # The key of the first message decided where the entry went, so it shows how the keys are written.
    "bytes as keys, by the first message": (
        [_message(OWN_BYTES), _message(OTHER_BYTES), _message(OWN_BYTES)],
        0,
        "+-+",
    ),
    "texts as keys, by the first message": ([_message(OWN[0]), _message(OWN_BYTES)], 0, "+-"),
    "a text as key of an entry whose beginning is gone": ([_message(OWN[0])], 3, "+"),
    "bytes as key of an entry whose beginning is gone": ([_message(OWN_BYTES)], 3, "+"),
}


@pytest.mark.parametrize(("messages", "first_index", "signs"), TOLD.values(), ids=TOLD)
def test_a_buckets_messages_are_told_by(messages: list[Any], first_index: int, signs: str) -> None:
    assert _sorted(*messages, first_index=first_index) == signs


def test_an_entry_of_one_bucket_is_not_cut() -> None:
    run = Run((7, 1), 0, [_message(key) for key in _keys(LOW, 3)], is_batched=True)

    assert BucketFilter(LOW).sort(run) == ([run], [])


def test_what_one_entry_is_tells_nothing_of_the_next() -> None:
    asked = BucketFilter(LOW)

    assert _sorted(_message(_bytes_key(LOW)), asked=asked) == "+"
    assert _sorted(_message(_bytes_key(LOW)), first_index=1, asked=asked) == "+"
    assert _sorted(_message(_keys(LOW, 1)[0]), _message(_bytes_key(LOW)), entry=2, asked=asked) == "+-"
