"""Pulsar's own classes are asked the same: equal answers, except for Pulsar's errors.

The answers are on file, written by `PulsarSplitOracle.java` from the jars of 4.2.4; its head says how to run it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import (
    MIB,
    BundleTopic,
    SplitOptions,
    SplitPlan,
    SplitRequest,
)
from controller.bundles.domain.splitting.policy import plan_split
from controller.domain.errors import InvalidInput

SAME = "the same answer"
DEFECTS = {
    "a position given twice",
    "a topic on the last hash",
    "equal hashes in the middle",
    "exactly at the margin",
    "neighbouring hashes in the middle",
    "topics of one hash",
}


def _sections() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for line in Path(__file__).with_name("pulsar_4_2_4_answers.txt").read_text().splitlines():
        if line.startswith("["):
            found[line[1:-1]] = []
        elif line and not line.startswith("#"):
            case, answer = line.split(" => ")
            found[list(found)[-1]].append((case, answer))
    return found


SECTIONS = _sections()


def _topic(text: str) -> BundleTopic:
    name, at, msg_rate, byte_rate = text.split("/")
    return BundleTopic(name, int(at), BundleStats(msg_rate_in=float(msg_rate), byte_rate_in=float(byte_rate)))


def _ours(case: str) -> str:
    """In the oracle's form; to Pulsar no points and no answer are the same."""
    algorithm, lower, upper, max_msg_rate, max_mib, percent, positions, topics = case.split()
    options = SplitOptions(
        max_msg_rate=float(max_msg_rate),
        max_byte_rate=float(max_mib) * MIB,
        difference_percent=float(percent),
        positions=() if positions == "-" else tuple(int(position, 0) for position in positions.split(",")),
    )
    known = [] if topics == "-" else [_topic(text) for text in topics.split(",")]
    bundle = NamespaceBundle("t/n", int(lower, 0), int(upper, 0))
    try:
        answer = plan_split(algorithm, SplitRequest(bundle, known, options))
    except InvalidInput:
        return "error"
    return str(list(answer.cuts)) if isinstance(answer, SplitPlan) else "null"


def _theirs(answer: str) -> str:
    return "error" if answer.startswith("error") else answer.replace("[]", "null")


def test_every_algorithm_and_every_kind_of_answer_is_on_file() -> None:
    kinds = {(case.split()[0], _theirs(answer)[0]) for case, answer in SECTIONS[SAME]}

    assert kinds == {
        ("range_equally_divide", "["),
        ("topic_count_equally_divide", "["),
        ("topic_count_equally_divide", "n"),
        ("specified_positions_divide", "["),
        ("specified_positions_divide", "n"),
        ("specified_positions_divide", "e"),
        ("flow_or_qps_equally_divide", "["),
        ("flow_or_qps_equally_divide", "n"),
    }
    assert set(SECTIONS) == {SAME, *DEFECTS}


@pytest.mark.parametrize("algorithm", sorted({case.split()[0] for case, _ in SECTIONS[SAME]}))
def test_where_pulsar_is_right_the_answer_is_pulsars(algorithm: str) -> None:
    cases = [(case, _theirs(answer)) for case, answer in SECTIONS[SAME] if case.startswith(algorithm)]

    assert [(case, _ours(case)) for case, _ in cases] == cases


@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_where_pulsar_is_wrong_the_answer_is_another(defect: str) -> None:
    """A valid one: that every plan is, `test_laws` shows."""
    for case, answer in SECTIONS[defect]:
        assert _ours(case) != _theirs(answer), case
