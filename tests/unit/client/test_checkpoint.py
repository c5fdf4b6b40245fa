"""Checkpoints as bytes, and what may be gone on from."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import restored
from controller.client.segment_lists import ListedSegment, SegmentList
from controller.dataplane.log_client import Position
from controller.domain.errors import CleaveError, Conflict, DataGone, InvalidInput
from controller.domain.hash_range import FULL_RANGE

POSITIONS = st.none() | st.lists(st.integers(-1, 2**62), min_size=1, max_size=3).map(tuple)


def kept(positions: Mapping[int, Position | None], *done: int, epoch: int = 3) -> Checkpoint:
    return Checkpoint(7, "topic://t/n/x", epoch, positions, frozenset(done))


def layout(*segment_ids: int, epoch: int = 3, created_epoch: int = 0, topic_id: int = 7) -> SegmentList:
    segments = {i: ListedSegment(i, FULL_RANGE, False, (), created_epoch, f"log-{i}") for i in segment_ids}
    return SegmentList(topic_id, "topic://t/n/x", epoch, segments, None)


@given(st.dictionaries(st.integers(0, 300), POSITIONS), st.sets(st.integers(0, 300)))
def test_what_is_kept_is_what_was_taken(positions: dict[int, Position | None], done: set[int]) -> None:
    checkpoint = kept({i: at for i, at in positions.items() if i not in done}, *done)

    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint


def test_that_of_a_member_says_when_it_got_each_segment() -> None:
    member = Checkpoint(7, "topic://t/n/x", 3, {1: (5, 6), 2: None}, frozenset({0}), {1: 4, 2: 2})

    assert Checkpoint.from_bytes(member.to_bytes()) == member


def test_a_generation_without_a_position_is_refused() -> None:
    with pytest.raises(InvalidInput, match="segment 1 has a generation and no position"):
        Checkpoint(1, "t", 1, {}, frozenset(), {1: 3})


def test_a_topic_that_was_reshaped_often_has_a_short_one() -> None:
    assert len(kept({20_000: (5,)}, *range(20_000)).to_bytes()) < 200


def with_positions(positions: str, done: str = "[]", **others: str) -> bytes:
    fields = {"topic_id": "7", "topic": '"x"', "epoch": "0", **others, "positions": positions, "done": done}
    return f'{{"cleave_checkpoint":1,{",".join(f"{chr(34)}{n}{chr(34)}:{v}" for n, v in fields.items())}}}'.encode()


def test_what_is_right_is_read() -> None:
    """The damaged ones below differ from this one in one place each."""
    read = Checkpoint.from_bytes(with_positions('{"0":[1],"2":null}', "[[3,4]]"))

    assert read == Checkpoint(7, "x", 0, {0: (1,), 2: None}, frozenset({3, 4}))


@pytest.mark.parametrize(
    "damaged",
    [
        b"[" * 100_000,
        b'{"cleave_checkpoint":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"cleave_checkpoint":Infinity}',
        b'{"cleave_checkpoint":true,"topic_id":7,"topic":"x","epoch":0,"positions":{},"done":[]}',
        with_positions('{"-1":[1]}'),
        with_positions('{"0":[1],"00":[2]}'),
        with_positions('{"0":[1],"0":[2]}'),
        with_positions('{" 0":[1]}'),
        with_positions('{"9223372036854775808":[1]}'),
        with_positions('{"0":[9223372036854775808]}'),
        with_positions('{"0":[-9223372036854775809]}'),
        with_positions('{"0":[true]}'),
        with_positions('{"0":[1e400]}'),
        with_positions('{"0":{"1":2}}'),
        with_positions('{"0":' + "[" * 900 + "]" * 900 + "}"),
        with_positions("{}", "[[-2,-1]]"),
        with_positions("{}", "[[2,1]]"),
        with_positions("{}", "[[0,1],[1,2]]"),
        with_positions("{}", "[[0,9223372036854775807]]"),
        with_positions("{}", "[[0,1000000000000]]"),
        with_positions("{}", "[[0,1],[1000000000000,2000000000000]]"),
        with_positions("{}", "[[0,1e400]]"),
        with_positions("{}", "[[0]]"),
        with_positions("{}", "[0]"),
        with_positions("{}", "0"),
        with_positions("{}", topic_id="1e400"),
        with_positions("{}", topic_id='"7"'),
        with_positions("{}", topic_id="-7"),
        with_positions("{}", epoch="9" * 5_000),
        with_positions("{}", topic="7"),
        with_positions("{}", topic=r'"\ud800"'),
        b'{"cleave_checkpoint":2,"topic_id":7,"topic":"x","epoch":0,"positions":{"0":[1]},"done":[],"generations":{"0":-1}}',
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'"text"',
        b'{"cleave_checkpoint":1}',
        b'{"cleave_checkpoint":1,"topic_id":7,"topic":"x","epoch":0,"positions":{"0":"5"},"done":[]}',
        b'{"cleave_checkpoint":1,"topic_id":7,"topic":"x","epoch":0,"positions":{"0":[]},"done":[]}',
        b'{"cleave_checkpoint":1,"topic_id":7,"topic":"x","epoch":0,"positions":{"0":[1.5]},"done":[]}',
        b'{"cleave_checkpoint":1,"topic_id":7,"topic":"x","epoch":0,"positions":{"0":[1]},"done":[[0,2]]}',
        b'{"cleave_checkpoint":1,"topic_id":7,"topic":"x","epoch":0,"positions":[],"done":[]}',
        b'{"cleave_checkpoint":2,"topic_id":7,"topic":"x","epoch":0,"positions":{"0":[1]},"done":[],"generations":{"1":2}}',
        b'{"cleave_checkpoint":2,"topic_id":7,"topic":"x","epoch":0,"positions":{"0":[1]},"done":[],"generations":[]}',
    ],
)
def test_what_is_none_is_refused(damaged: bytes) -> None:
    with pytest.raises(InvalidInput, match="checkpoint"):
        Checkpoint.from_bytes(damaged)


def test_one_of_a_newer_version_is_refused() -> None:
    newer = json.dumps({"cleave_checkpoint": 3}).encode()

    with pytest.raises(InvalidInput, match="version 3"):
        Checkpoint.from_bytes(newer)


def test_every_segment_has_its_place_and_what_is_new_is_read_from_its_beginning() -> None:
    found = layout(1, 2, 3)
    new = {4: ListedSegment(4, FULL_RANGE, False, (), 5, "log-4")}
    later = SegmentList(found.topic_id, found.topic, 5, {**found.segments, **new}, None)

    assert restored(kept({1: (5,), 2: None}, 0, 3), later) == ({1: (5,), 2: None, 4: None}, {3})


def test_a_segment_that_is_gone_and_was_read_is_no_loss() -> None:
    assert restored(kept({1: (5,)}, 0), layout(1)) == ({1: (5,)}, set())


@pytest.mark.parametrize(
    ("checkpoint", "found", "error", "message"),
    [
        (kept({0: (9,), 1: (5,)}), layout(1), DataGone, r"segment\(s\) 0 "),
        (kept({0: None, 1: (5,)}), layout(1), DataGone, r"segment\(s\) 0 "),
        (kept({1: (5,)}), layout(1, 2), InvalidInput, "does not name segment 2"),
        (kept({1: (5,)}), layout(1, topic_id=8), Conflict, "topic 7"),
        (kept({1: (5,)}), layout(1, epoch=2), Conflict, "epoch 3"),
    ],
    ids=[
        "a segment is gone unread",
        "a segment is gone whose beginning was not read",
        "a segment of its epoch that it does not name",
        "another topic",
        "a layout that was put back",
    ],
)
def test_a_checkpoint_that_a_layout_does_not_continue_is_refused(
    checkpoint: Checkpoint, found: SegmentList, error: type[CleaveError], message: str
) -> None:
    with pytest.raises(error, match=message):
        restored(checkpoint, found)


def test_no_depth_of_a_value_is_another_error() -> None:
    """At some depth of the caller's stack Python reads a value that it cannot write into a message."""
    for depth in range(1, sys.getrecursionlimit() + 10):
        for value in ('{"0":%s}', '{"0":[%s]}', "%s"):
            with pytest.raises(InvalidInput, match="checkpoint"):
                Checkpoint.from_bytes(with_positions(value % ("[" * depth + "]" * depth)))


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists) | st.binary()
)
def test_no_value_in_any_place_is_another_error(value: object) -> None:
    document = json.loads(kept({1: (5,)}, 0).to_bytes())
    for name in document:
        text = value if isinstance(value, bytes) else json.dumps({**document, name: value}).encode()
        with suppress(InvalidInput):
            Checkpoint.from_bytes(text)
