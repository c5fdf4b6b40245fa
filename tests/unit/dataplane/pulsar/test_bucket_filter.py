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


def test_each_message_of_a_batch_without_a_mark_is_told_by_its_key() -> None:
    own, other = _keys(LOW, 2), _keys(HIGH, 1)

    assert _sorted(_message(own[0]), _message(other[0]), _message(own[1])) == "+-+"
    assert _sorted(_message(own[0]), _message(own[1])) == "++"
    assert _sorted(_message(other[0])) == "-"


def test_an_entry_of_one_bucket_is_not_cut() -> None:
    run = Run((7, 1), 0, [_message(key) for key in _keys(LOW, 3)], is_batched=True)

    assert BucketFilter(LOW).sort(run) == ([run], [])


def test_without_a_key_there_is_no_order_to_keep() -> None:
    assert _sorted(_message(), _message()) == "++"


def test_an_ordering_key_counts_before_the_key() -> None:
    (own,), (other,) = _keys(LOW, 1), _keys(HIGH, 1)

    assert _sorted(_message(other, ordering_key=own), _message(own, ordering_key=other)) == "+-"


def test_what_cleave_marked_is_told_by_the_mark_alone() -> None:
    (other,) = _keys(HIGH, 1)

    assert _sorted(_message(other, **{HASHES: "0000-0fff"}), _message(other)) == "++"
    assert _sorted(_message("", **{HASHES: "9000-9fff"}), _message("")) == "--"


def test_bytes_as_keys_are_told_by_the_first_message() -> None:
    """Its key decided where the entry went, so it shows how the keys are written."""
    own, other = _bytes_key(LOW), _bytes_key(HIGH)

    assert _sorted(_message(own), _message(other), _message(own)) == "+-+"
    assert _sorted(_message(_keys(LOW, 1)[0]), _message(own)) == "+-"


@pytest.mark.parametrize("sent", [_keys(LOW, 1)[0], _bytes_key(LOW)])
def test_of_an_entry_whose_beginning_is_gone_keys_may_be_either(sent: str) -> None:
    assert _sorted(_message(sent), first_index=3) == "+"


def test_what_one_entry_is_tells_nothing_of_the_next() -> None:
    asked = BucketFilter(LOW)

    assert _sorted(_message(_bytes_key(LOW)), asked=asked) == "+"
    assert _sorted(_message(_bytes_key(LOW)), first_index=1, asked=asked) == "+"
    assert _sorted(_message(_keys(LOW, 1)[0]), _message(_bytes_key(LOW)), entry=2, asked=asked) == "+-"
