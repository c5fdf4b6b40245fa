"""`cleave bundles split` and `unload` on two brokers that behave as spec'd: what they do, rehearse and refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.bundles.domain.ring import topic_hash
from tests.support.bundle_operator import HIGH, LOW, NAMESPACE, TOPICS, BundleOperator, bundle_operator
from tests.support.bundle_reports import HALF


@pytest.fixture
def operator(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[BundleOperator]:
    with bundle_operator(database, tmp_path, capsys, monkeypatch) as operator:
        yield operator


def test_a_bundle_is_split_at_positions_after_a_look(operator: BundleOperator) -> None:
    for name in TOPICS:
        operator.bench.cluster.publish(name)
    said = operator.cleave.rehearsed("bundles", "split", LOW, "--positions", "0x40000000")
    assert "0x00000000_0x40000000" in said
    assert operator.bench.cluster.acts == []

    parts = operator.cleave.json("bundles", "split", LOW, "--positions", "0x40000000")["parts"]
    assert [part["part"] for part in parts] == ["0x00000000_0x40000000", "0x40000000_0x80000000"]
    assert sum(part["topics"] for part in parts) == sum(topic_hash(name) < HALF for name in TOPICS)
    assert operator.bench.cluster.lists[NAMESPACE].count == 3


def test_a_split_at_positions_that_was_made_is_found_made(operator: BundleOperator) -> None:
    for name in TOPICS:
        operator.bench.cluster.publish(name)
    words = ("bundles", "split", LOW, "--positions", "0x40000000", "--positions", "0x60000000")
    first = operator.cleave.json(*words)
    acts = list(operator.bench.cluster.acts)

    assert first["outcome"] == "done"
    assert operator.cleave.json(*words) == {**first, "outcome": "done-already"}
    assert "done-already" in operator.cleave.ok(*words)
    assert operator.bench.cluster.acts == acts
    assert "invalid upper boundary" in operator.cleave.refused(
        "bundles", "split", LOW, "--positions", "0x50000000"
    )


def test_a_split_by_hand_keeps_the_namespace_s_cap(operator: BundleOperator) -> None:
    operator.uneven()
    for name in TOPICS:
        operator.bench.cluster.publish(name)
    operator.cleave.ok("bundles", "set-policy", NAMESPACE, "max_bundles=2")
    words = ("bundles", "split", LOW, "--positions", "0x40000000")

    said = operator.cleave.refused(*words)
    assert "has 2 bundles, and 1 more exceed max_bundles = 2" in said
    assert "exceed max_bundles" in operator.cleave.refused(*words, "--dry-run")
    assert operator.bench.cluster.acts == []
    operator.cleave.ok("bundles", "set-policy", NAMESPACE, "max_bundles=3")
    operator.cleave.ok(*words)
    operator.cleave.ok("bundles", "set-policy", NAMESPACE, "max_bundles=2")
    assert operator.cleave.json(*words)["outcome"] == "done-already"  # a repeat adds nothing


def test_algorithms_are_those_of_the_setting(
    operator: BundleOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_BUNDLE_SPLIT_ALGORITHMS", '["topic_count_equally_divide"]')
    said = operator.cleave.refused("bundles", "split", LOW)
    assert "'range_equally_divide' is not allowed here; choose one of topic_count_equally_divide" in said


def test_a_topic_gets_a_bundle_of_its_own(operator: BundleOperator) -> None:
    for name in TOPICS:
        operator.bench.cluster.publish(name)
    mine = next(name for name in TOPICS if topic_hash(name) < HALF)
    parts = operator.cleave.json("bundles", "split", LOW, "--topics", mine)["parts"]

    assert [part["topics"] for part in parts if int(part["part"][2:10], 16) == topic_hash(mine)] == [1]


def test_topics_that_nobody_uses_count_and_can_be_named(operator: BundleOperator) -> None:
    """Brokers tell statistics of topics in use alone; a bundle lists all of its own."""
    mine = sorted((name for name in TOPICS if topic_hash(name) < HALF), key=topic_hash)
    operator.bench.cluster.publish(mine[0])
    operator.bench.cluster.idle.update(mine[1:])

    halves = operator.cleave.json(
        "bundles", "split", LOW, "--algorithm", "topic_count_equally_divide", "--dry-run"
    )["parts"]
    assert [part["topics"] for part in halves] == [len(mine) // 2, len(mine) - len(mine) // 2]
    assert [part["msg_rate"] for part in halves] == [2.0, 0.0]
    parts = operator.cleave.json("bundles", "split", LOW, "--topics", mine[-1])["parts"]
    assert [part["topics"] for part in parts if int(part["part"][2:10], 16) == topic_hash(mine[-1])] == [1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((LOW, "--positions", "0x90000000"), "inside"),
        ((LOW, "--positions", "0x0"), "strictly inside"),
        ((LOW, "--algorithm", "no_such_divide"), "is not allowed here"),
        ((f"{NAMESPACE}/0x00000000_0x70000000",), "upper boundary"),
        ((LOW, "--topics", TOPICS[0], "--positions", "0x40000000"), "not both"),
        ((LOW, "--algorithm", "range_equally_divide", "--positions", "0x40000000"), "takes no positions"),
        ((LOW, "--algorithm", "topic_count_equally_divide", "--topics", TOPICS[0]), "takes no topics"),
        ((LOW, "--algorithm", "topic_count_equally_divide", "--parts", "3"), "takes no parts"),
        ((LOW, "--algorithm", "specified_positions_divide"), "at least one, strictly inside"),
        ((LOW, "--positions", "banana"), "is not a hash"),
        ((LOW, "--topics", "nope"), "0 topics in it"),
        (("nonsense",), "bundle"),
        (("LARGEST",), "write it as tenant/namespace"),
        (("acme/none/HOT",), "no bundles of namespace acme/none are known"),
        (("acme/none/0x00000000_0x80000000",), "no namespace acme/none"),
    ],
)
def test_a_split_that_cannot_be_is_one_line(
    operator: BundleOperator, arguments: tuple[str, ...], words: str
) -> None:
    assert words in operator.cleave.refused("bundles", "split", *arguments)
    assert operator.bench.cluster.acts == []


def test_a_bundle_is_unloaded_to_a_broker(operator: BundleOperator) -> None:
    _, second = operator.uneven()
    assert second in operator.cleave.rehearsed("bundles", "unload", LOW, "--destination", second)
    assert operator.cleave.json("bundles", "unload", LOW, "--destination", second)["owner"] == second
    assert (
        operator.cleave.json("bundles", "unload", f"{NAMESPACE}/LARGEST", "--destination", second)["outcome"]
        == "done-already"
    )


@pytest.mark.parametrize("how", [(), ("--dry-run",)], ids=["done", "rehearsed"])
@pytest.mark.parametrize(
    ("bundle", "to", "words"),
    [
        (LOW, "nobody:1", "nobody:1 is not an active broker of cluster staged; choose one of"),
        (f"{NAMESPACE}/0x00000000_0x70000000", None, "upper boundary"),
        (f"{NAMESPACE}/LARGEST", None, f"no bundles of namespace {NAMESPACE} are known"),
    ],
)
def test_an_unload_that_cannot_be_is_one_line_rehearsed_or_not(
    operator: BundleOperator, bundle: str, to: str | None, words: str, how: tuple[str, ...]
) -> None:
    destination = () if to is None else ("--destination", to)
    assert words in operator.cleave.refused("bundles", "unload", bundle, *destination, *how)
    assert operator.bench.cluster.acts == []


def test_hot_is_what_was_hot_for_long_and_not_just_now(operator: BundleOperator) -> None:
    def hot() -> str:
        document = operator.cleave.json("bundles", "unload", f"{NAMESPACE}/HOT", "--dry-run")
        return str(document["bundle"])

    operator.uneven(20.0, 60.0)
    assert hot() == HIGH  # no cycle yet: all that is known is the reading
    operator.cleave.ok("bundles", "propose")
    operator.later(1, 70.0, 40.0)
    assert hot() == HIGH
    operator.cleave.ok("bundles", "propose")
    assert hot() == HIGH  # 50 on average against 45
    operator.later(2, 70.0, 40.0)
    operator.cleave.ok("bundles", "propose")
    assert hot() == LOW
