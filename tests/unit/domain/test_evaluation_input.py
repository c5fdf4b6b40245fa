"""The canonical text of a situation: what is in it, and that one situation has one text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from controller.domain.errors import InvalidInput
from controller.domain.evaluation_input import EvaluationInput, History, LiveReshape
from controller.domain.evaluator import decide
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadStats
from controller.domain.policy import AutoScalePolicy, UnreadablePolicy
from controller.domain.reshape import ReshapeKind
from tests.support.ancestry import merge_depth_by_ancestry
from tests.unit.domain.situations import NOW, SHARED, record, situations, topic


def lived() -> SegmentLayout:
    return SegmentLayout.initial(2, now=0).split(0, 1).merge(2, 3, 2)


def test_the_text_is_compact_sorted_and_writes_whole_numbers_as_integers() -> None:
    text = topic(700.0, 0.5, consumers=2).to_json()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    load = json.loads(text)["loads"]
    assert '"msg_rate_in":700,' in text
    assert load["1"]["msg_rate_in"] == 0.5


def test_the_text_does_not_tell_an_integer_rate_from_a_float() -> None:
    one, other = topic(LoadStats(700, 0, 0, 0)), topic(LoadStats(700.0, 0.0, 0.0, 0.0))
    assert one.to_json() == other.to_json()


def test_only_active_segments_and_their_load_are_in_the_text() -> None:
    layout = lived()
    situation = topic(10, 20, layout=layout)
    situation = replace(
        situation,
        loads=dict(situation.loads) | {0: record(5), 99: record(5)},
        recent_loads={4: (LoadStats(1), LoadStats(2)), 0: (LoadStats(3),)},
    )
    document = json.loads(situation.to_json())
    assert [segment["id"] for segment in document["segments"]] == [4, 1]
    assert set(document["loads"]) == {"1", "4"}
    assert document["recent_loads"] == {"4": [[1, 0, 0, 0], [2, 0, 0, 0]]}
    assert document["ancestors"] == []
    assert EvaluationInput.from_json(situation.to_json()).recent_loads == {4: (LoadStats(1), LoadStats(2))}


def test_under_strict_pulsar_the_ancestors_whose_merges_count_are_in_the_text() -> None:
    situation = topic(10, 20, layout=lived(), policy=AutoScalePolicy(strict_pulsar=True, max_dag_depth=1))
    document = json.loads(situation.to_json())
    assert document["ancestors"] == [[0, []], [2, [0]], [3, [0]]]
    replayed = EvaluationInput.from_json(situation.to_json())
    assert merge_depth_by_ancestry(replayed.layout, 4) == 1
    assert decide(replayed) == decide(situation)


def test_a_policy_that_could_not_be_read_is_none_that_can_when_it_comes_back() -> None:
    situation = topic(1_000_000, policy=UnreadablePolicy(why="topic's policy: max_segments = '8'"))

    replayed = EvaluationInput.from_json(situation.to_json())

    assert replayed == situation
    assert decide(replayed) == decide(situation)


@pytest.mark.parametrize("why", [None, 1, ["x"]])
def test_why_a_policy_could_not_be_read_is_a_text(why: object) -> None:
    document = json.loads(topic(10).to_json())
    document["policy"]["unreadable"] = why

    with pytest.raises(InvalidInput, match=r"unreadable = .*give a text"):
        EvaluationInput.from_json(json.dumps(document))


@pytest.mark.parametrize("name", ["reconnections_left", "cluster_reconnections_left"])
@pytest.mark.parametrize("value", [10**400, -(10**400), True, "1"], ids=["large", "low", "true", "text"])
def test_a_number_of_reconnections_that_is_no_float_is_refused(name: str, value: object) -> None:
    document = json.loads(topic(10).to_json()) | {name: value}

    with pytest.raises(InvalidInput, match=rf"^{name} = .*; give a number"):
        EvaluationInput.from_json(json.dumps(document))


def test_everything_a_decision_reads_comes_back_equal() -> None:
    situation = topic(
        10,
        None,
        consumers={"b": 3, "a": 1},
        policy=AutoScalePolicy(split_msg_rate_in=float("inf"), max_segments=9),
        history=History(last_split_at=1, last_merge_at=None, last_rebucket_at=3),
        in_flight=(
            LiveReshape(8, ReshapeKind.SPLIT, (0,), 2, NOW - 1),
            LiveReshape(7, ReshapeKind.MERGE, (5, 6), 1, NOW - 2),
        ),
        capabilities=SHARED,
    )
    replayed = EvaluationInput.from_json(situation.to_json())
    assert replayed.layout.active == situation.layout.active
    assert replayed.layout.next_segment_id == situation.layout.next_segment_id
    assert replayed.layout.epoch == situation.layout.epoch
    assert replayed.in_flight == situation.in_flight[::-1]
    assert replace(replayed, layout=situation.layout, in_flight=situation.in_flight) == replace(
        situation, recent_loads=replayed.recent_loads
    )


@given(situations())
def test_reading_and_writing_again_gives_the_same_text(situation: EvaluationInput) -> None:
    text = situation.to_json()
    assert EvaluationInput.from_json(text).to_json() == text


def test_another_controller_is_told_only_where_there_is_one() -> None:
    alone = topic(700.0, 0.5, consumers=2)
    with_other = replace(alone, foreign_controller=True)

    assert "foreign_controller" not in json.loads(alone.to_json())
    assert EvaluationInput.from_json(with_other.to_json()).foreign_controller
