"""Descriptors are waited for whatever their numbers are."""

from __future__ import annotations

import os

import pytest

from controller.file_descriptors import readable
from tests.support.crowd import crowded


def test_those_that_have_something_are_told() -> None:
    read, write = os.pipe()
    other, other_write = os.pipe()
    assert readable(read, other, timeout_seconds=0.0) == frozenset()

    os.write(write, b"!")
    assert readable(read, other, timeout_seconds=60.0) == {read}

    os.close(other_write)  # an end is to be read, too
    assert readable(read, other, timeout_seconds=60.0) == {read, other}
    for one in (read, write, other):
        os.close(one)


def test_a_wait_is_never_cut_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a millisecond would be a loop that takes a whole core."""
    asked: list[int] = []

    class Poll:
        def register(self, _descriptor: int, _events: int) -> None: ...

        def poll(self, milliseconds: int) -> list[tuple[int, int]]:
            asked.append(milliseconds)
            return []

    monkeypatch.setattr("controller.file_descriptors.select.poll", Poll)
    readable(0, timeout_seconds=0.0001)
    readable(0, timeout_seconds=1.5)

    assert asked == [1, 1500]


def test_no_number_is_too_high() -> None:
    with crowded():
        read, write = os.pipe()
        os.write(write, b"!")
        assert readable(read, timeout_seconds=60.0) == {read}
        os.close(read)
        os.close(write)
