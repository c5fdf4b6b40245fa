"""Digests of evaluations: the lane of an act, and what counts as said before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.decision import Decision, Lane, Merge, Rebucket, Refusal, RefusalReason, Split, lane_of
from controller.services.autoscaler.outcome_digest import digest

ALL = frozenset(Lane)

refusals = st.lists(
    st.builds(
        Refusal,
        st.one_of(st.none(), st.integers(0, 9)),
        st.one_of(st.none(), st.sampled_from(Lane)),
        st.sampled_from(RefusalReason),
        st.sampled_from(["msg_rate_in", None]),
        st.one_of(st.none(), st.floats(allow_nan=False)),
    ),
    max_size=5,
)
previous = st.one_of(st.none(), refusals.map(lambda told: digest(told, ALL, None)))


@pytest.mark.parametrize(
    ("act", "lane"),
    [
        (Split(0, (), "consumer-count"), Lane.CONSUMER),
        (Rebucket(0, 8, "at-max-segments"), Lane.CONSUMER),
        (Split(0, (), "msgRateIn"), Lane.LOAD),
        (Merge(0, 1, "cold"), Lane.MERGE),
    ],
)
def test_each_act_belongs_to_the_lane_that_found_it(act: Decision, lane: Lane) -> None:
    assert lane_of(act) is lane


def test_the_same_refusal_at_another_rate_is_not_new_but_under_another_limit_it_is() -> None:
    def said(value: float, needed: float) -> str | None:
        refusal = Refusal(1, Lane.LOAD, RefusalReason.AT_MAX_SEGMENTS, "segments", value, needed)
        return digest([refusal], {Lane.LOAD}, None)

    assert said(8, 8) == said(9, 8) != said(9, 9)


def test_of_what_is_weighed_at_each_tick_only_the_segment_of_an_overload_counts() -> None:
    """An overload names the hot segment; the segments of a saving follow small changes of the load."""

    def said(reason: RefusalReason, segment_id: int, needed: float) -> str | None:
        refusal = Refusal(segment_id, Lane.LOAD, reason, "segment_seconds", 1.0, needed, other_id=9)
        return digest([refusal], {Lane.LOAD}, None)

    overload, saving = RefusalReason.TOLERATED_OVERLOAD, RefusalReason.SAVING_BELOW_PRICE
    assert said(overload, 4, 60.0) == said(overload, 4, 61.0) != said(overload, 7, 60.0)
    assert said(saving, 4, 60.0) == said(saving, 7, 61.0) != said(overload, 4, 60.0)


def test_nothing_refused_is_no_word() -> None:
    assert digest([], ALL, None) is None


@given(refusals, previous)
def test_saying_the_same_again_changes_nothing(told: list[Refusal], before: str | None) -> None:
    once = digest(told, ALL, before)

    assert digest(list(reversed(told)), ALL, once) == once


@given(refusals, refusals)
def test_lanes_speak_for_themselves(first: list[Refusal], second: list[Refusal]) -> None:
    """Asking the lanes one after the other, in any order, leaves what asking them together leaves."""
    mine = [refusal for refusal in first if refusal.lane is Lane.LOAD]
    theirs = [refusal for refusal in second if refusal.lane is Lane.MERGE]

    together = digest([*mine, *theirs], {Lane.LOAD, Lane.MERGE}, None)

    assert digest(theirs, {Lane.MERGE}, digest(mine, {Lane.LOAD}, None)) == together
    assert digest(mine, {Lane.LOAD}, digest(theirs, {Lane.MERGE}, None)) == together
