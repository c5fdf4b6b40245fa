"""A sample of keys becomes a sketch: each key in its bin, what nobody can place everywhere alike."""

from __future__ import annotations

from controller.dataplane.optional_abilities import KeySample
from controller.domain.hash_range import HashRange
from controller.services.key_sampler import LEAST_MESSAGES, sketch_of

RANGE = HashRange(0x4000, 0x4003)


def test_each_key_counts_in_its_bin() -> None:
    assert sketch_of(RANGE, KeySample((0x4000,) * 30 + (0x4002,) * 70, 0)) == [30, 0, 70, 0]


def test_keys_of_another_rule_count_everywhere() -> None:
    assert sketch_of(RANGE, KeySample((0x4001,) * 60 + (0x8000,) * 30, 10)) == [10, 70, 10, 10]
    assert sketch_of(RANGE, KeySample((0x8000,) * 200, 0)) == []


def test_too_little_says_nothing() -> None:
    assert sketch_of(RANGE, KeySample((0x4000,) * (LEAST_MESSAGES - 1), 0)) == []
    assert sketch_of(RANGE, KeySample((0x4000,) * (LEAST_MESSAGES - 1), 1)) != []
    assert sketch_of(RANGE, KeySample((), 1_000)) == []
