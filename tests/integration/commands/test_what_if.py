"""`cleave what-if`: another policy beside the one in force, at one instant, and nothing is written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.commands.test_decide import HOT, write_load
from tests.support.command_line import CommandLine


@pytest.fixture
def loaded(cleave: CommandLine, orders: str) -> str:
    """A topic with one hot segment, and one that is neither hot nor cold."""
    write_load(cleave, 0, HOT)
    write_load(cleave, 1, 5_000.0)
    return orders


def acts(answer: dict[str, Any]) -> list[tuple[str, int]]:
    return [(act["kind"], act["segment_id"]) for act in answer["decisions"]]


def test_a_changed_threshold_is_seen_beside_the_one_in_force(cleave: CommandLine, loaded: str) -> None:
    before = cleave.rows()

    answer = cleave.json("what-if", loaded, "--set", "split_msg_rate_in=30000")
    said = cleave.ok("what-if", loaded, "--set", "split_msg_rate_in=30000")

    assert answer["changes"] == [{"parameter": "split_msg_rate_in", "was": 10_000, "value": 30_000}]
    assert acts(answer["in_force"]) == [("split", 0)]
    assert acts(answer["what_if"]) == []
    assert not answer["is_same"]
    assert [act["segment_id"] for act in answer["difference"]["in_force"]["decisions"]] == [0]
    assert "split_msg_rate_in 10000 -> 30000" in said
    assert [line.split()[:4] for line in said.splitlines() if " split " in line] == [
        ["in", "force", "split", "0"]
    ]
    assert cleave.rows() == before


def test_each_refusal_says_how_far_it_was_from_acting(cleave: CommandLine, loaded: str) -> None:
    answer = cleave.json("what-if", loaded, "--set", "split_msg_rate_in=4000", "--set", "max_segments=2")

    refusals = answer["what_if"]["refusals"]
    said = {(one["reason"], one["segment_id"]): one["how_far"] for one in refusals}
    assert said["at-max-segments", 0] == "segments 2, needs below 2 (is at it)"
    assert said["at-max-segments", 1] == "segments 2, needs below 2 (is at it)"


def test_the_same_answer_says_so(cleave: CommandLine, loaded: str) -> None:
    answer = cleave.json("what-if", loaded, "--set", "merge_cooldown_seconds=1")

    assert answer["is_same"]
    assert answer["difference"] == {
        side: {"decisions": [], "refusals": []} for side in ("in_force", "what_if")
    }
    assert "the same acts and refusals" in cleave.ok("what-if", loaded, "--set", "max_segments=64")


def test_only_the_lanes_that_are_named_are_asked(cleave: CommandLine, loaded: str) -> None:
    answer = cleave.json("what-if", loaded, "--set", "max_segments=3", "--lanes", "merge")

    assert answer["lanes"] == ["merge"]
    assert acts(answer["in_force"]) == []


def test_a_policy_that_looks_at_ancestors_is_given_them(cleave: CommandLine, orders: str) -> None:
    """Under strict_pulsar the merges in the ancestry count, which the policy in force does not read."""
    cleave.ok("segments", "merge", orders, "0", "1")
    cleave.ok("segments", "split", orders, "2")
    cleave.execute("UPDATE cleave.segment SET merge_depth = 0")
    for segment_id in (3, 4):
        write_load(cleave, segment_id, 1.0)
    cleave.execute("UPDATE cleave.topic SET last_merge_at = NULL, row_version = row_version + 1")

    answer = cleave.json(
        "what-if", orders, "--set", "strict_pulsar=true", "--set", "max_dag_depth=1", "--lanes", "merge"
    )

    assert [one["reason"] for one in answer["what_if"]["refusals"]] == ["merge-depth"]
    assert "merge-depth" not in [one["reason"] for one in answer["in_force"]["refusals"]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--set", "nonsense=1"), "nonsense"),
        (("--set", "max_segments"), "must have the form key=value"),
        (("--set", "max_segments=many"), "give a whole number"),
        (("--set", "max_segments=0"), "max_segments = 0 must be >="),
        (("--set", "max_segments=null"), "give the value to ask about"),
        (("--set", "profile=none"), "must be one of"),
        (("--set", "max_segments=3", "--lanes", "hot"), "the lanes are consumer, load, merge"),
        (("--set", "max_segments=3", "--lanes", ","), "the lanes are"),
        ((), "--set"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    cleave: CommandLine, loaded: str, given: tuple[str, ...], said: str
) -> None:
    assert said in cleave.refused("what-if", loaded, *given)


def test_a_topic_that_is_not_there_is_one_line(cleave: CommandLine) -> None:
    assert "acme/shop/none" in cleave.refused("what-if", "acme/shop/none", "--set", "max_segments=3")


def test_a_policy_in_force_that_nobody_can_read_is_named(cleave: CommandLine, loaded: str) -> None:
    cleave.execute(
        """UPDATE cleave.topic SET policy = '{"max_segments": "x"}', row_version = row_version + 1"""
    )

    assert "cannot be read" in cleave.refused("what-if", loaded, "--set", "max_segments=3")
