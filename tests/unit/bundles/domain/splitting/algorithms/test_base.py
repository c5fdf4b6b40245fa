"""The question and the answer check themselves."""

from __future__ import annotations

import pytest

from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.ring import LAST_HASH, topic_hash
from controller.bundles.domain.splitting.algorithms.base import (
    _SENTENCES,
    BundleTopic,
    CutPoints,
    CutRefusal,
    CutRefusalReason,
    SplitOptions,
    SplitPlan,
    SplitRequest,
)
from controller.domain.errors import InvalidInput, InvariantViolated
from tests.unit.bundles.domain.splitting.algorithms.questions import BUNDLE, topic


def test_a_topic_lies_at_the_hash_of_its_complete_name() -> None:
    assert BundleTopic.of("my-topic") == BundleTopic(
        "persistent://public/default/my-topic", topic_hash("my-topic"), BundleStats()
    )


@pytest.mark.parametrize(
    ("stats", "at", "words"),
    [
        (BundleStats(), LAST_HASH + 1, "has hash 4294967296"),
        (BundleStats(), -1, "has hash -1"),
        (BundleStats(msg_rate_in=float("nan")), 0, "has a rate of nan, not finite and >= 0"),
        (BundleStats(byte_rate_out=float("inf")), 0, "has a rate of inf"),
        (BundleStats(msg_rate_out=-1.0), 0, "has a rate of -1.0"),
    ],
)
def test_a_topic_that_is_no_quantity_is_refused(stats: BundleStats, at: int, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        BundleTopic("x", at, stats)

    assert words in refused.value.message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_msg_rate", 0.0),
        ("max_msg_rate", float("inf")),
        ("max_byte_rate", -1.0),
        ("max_byte_rate", float("nan")),
        ("outstanding_percent", 0.0),
        ("difference_percent", -0.1),
        ("difference_percent", float("inf")),
        ("parts", 1),
        ("bundle_budget", -1),
    ],
)
def test_an_option_out_of_bounds_is_refused_by_name_and_value(option: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=f"split option {option} = {value}; give "):
        SplitOptions(**{option: value})


def test_the_defaults_are_pulsars() -> None:
    options = SplitOptions()

    assert (options.max_msg_rate, options.max_byte_rate, options.difference_percent) == (
        30_000,
        104_857_600,
        10,
    )


def test_a_topic_listed_twice_is_refused() -> None:
    with pytest.raises(
        InvalidInput, match="at-5 is listed twice in bundle public/default/0x00000000_0x80000000"
    ):
        SplitRequest(BUNDLE, [topic(5), topic(6), topic(5)])


@pytest.mark.parametrize("points", [(), (0,), (5, 0x80000000), (LAST_HASH,)])
def test_cuts_that_are_not_inside_never_become_a_plan(points: tuple[int, ...]) -> None:
    with pytest.raises(InvariantViolated, match="cuts lie strictly inside"):
        SplitPlan.of("x", SplitRequest(BUNDLE, ()), CutPoints(points))


def test_every_reason_has_a_sentence_with_its_figures() -> None:
    assert set(_SENTENCES) == set(CutRefusalReason)


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (
            CutRefusal("t/n/0x0_0x1", CutRefusalReason.BELOW_LIMIT, "msg_rate", 320.5, 495.0),
            "t/n/0x0_0x1: its msg_rate is 320.5; a cut takes 495, and more than the limit",
        ),
        (
            CutRefusal("t/n/0x0_0x1", CutRefusalReason.POSITION_OUTSIDE, "hash", 17, 16),
            "t/n/0x0_0x1: position 0x00000011 is not strictly inside the bundle; its edge is 0x00000010",
        ),
    ],
)
def test_a_refusal_is_a_sentence(refusal: CutRefusal, sentence: str) -> None:
    assert refusal.sentence == sentence
