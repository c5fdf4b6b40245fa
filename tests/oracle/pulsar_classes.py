"""Situations, layouts, ranges and rates put to Pulsar 5.0.0-M1's own classes, and its answers in our words.

`PulsarClasses` holds the process with the JVM. To look at one situation by hand, with the canonical text that a failing
test prints:

    python -m tests.oracle.pulsar_classes '<situation as JSON>'
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from controller.devstack.pulsar.jars import PULSAR_5, pulsar_jars
from controller.domain.decision import Decision, Merge, Split
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.policy import AutoScalePolicy

_SPLIT = re.compile(r"Split\[segmentId=(\d+), reason=(.*)\]")
_MERGE = re.compile(r"Merge\[segmentId1=(\d+), segmentId2=(\d+), reason=(.*)\]")


class PulsarClasses:
    """The oracle as a child process; every question takes and gives a whole batch."""

    def __init__(self, jars: Path) -> None:
        worker = Path(__file__).with_name("scalable_worker.py")
        self._process = subprocess.Popen(
            [sys.executable, str(worker), str(jars)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def decide(self, situations: Sequence[EvaluationInput]) -> list[tuple[Decision, ...]]:
        """Pulsar's decisions; none for a policy it refuses, as its controller has it."""
        layouts: dict[int, int] = {}
        configs: dict[AutoScalePolicy, int] = {}
        documents, items = [], []
        for situation in situations:
            if id(situation.layout) not in layouts:
                layouts[id(situation.layout)] = len(layouts)
                documents.append(situation.layout.to_metadata())
            item = _item(situation)
            item["layout"] = layouts[id(situation.layout)]
            item["config"] = configs.setdefault(situation.policy, len(configs))
            items.append(item)
        answers = self.ask("decisions", items, layouts=documents, configs=[_config(p) for p in configs])
        return [_read_decision(answer) for answer in answers]

    def validity(self, policies: Sequence[AutoScalePolicy]) -> list[bool]:
        """Whether Pulsar takes the configuration."""
        answers: list[bool] = self.ask("validity", [_config(policy) for policy in policies])
        return answers

    def ask(self, question: str, items: Sequence[Any], **more: Any) -> list[Any]:
        """One answer an item; see the methods of the worker's oracle."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"question": question, "items": items, **more}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with Pulsar's classes ended with {self._process.wait()}")
        answers: list[Any] = json.loads(line)
        return answers


def as_acts(decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Comparable with Pulsar's answer, whose two sides of a merge come in the order of a hash map."""
    return tuple(
        Merge(min(act.left_id, act.right_id), max(act.left_id, act.right_id), act.reason)
        if isinstance(act, Merge)
        else act
        for act in decisions
    )


def _item(situation: EvaluationInput) -> dict[str, Any]:
    return {
        "loads": {str(i): _sample(situation, i) for i in situation.loads},
        "consumers": dict(situation.stream_consumers),
        "split": situation.history.last_split_at,
        "merge": situation.history.last_merge_at,
        "now": situation.now,
    }


def _sample(situation: EvaluationInput, segment_id: int) -> dict[str, Any]:
    """A load record under the names of M1, which still says `bytesRate`."""
    record = situation.loads[segment_id]
    names = ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")
    return {"stats": dict(zip(names, record.stats.rates, strict=True)), "modifiedAtMs": record.modified_at}


def _config(policy: AutoScalePolicy) -> dict[str, Any]:
    return {
        "enabled": policy.enabled,
        "max_segments": policy.max_segments,
        "min_segments": policy.min_segments,
        "max_dag_depth": policy.max_dag_depth,
        "split_cooldown": policy.split_cooldown_seconds,
        "merge_cooldown": policy.merge_cooldown_seconds,
        "window": policy.merge_window_seconds,
        "split": policy.thresholds.split.rates,
        "merge": policy.thresholds.merge.rates,
    }


def _read_decision(text: str | None) -> tuple[Decision, ...]:
    if text is None or text.startswith("NoAction"):
        return ()
    split = _SPLIT.fullmatch(text)
    if split is not None:
        return (Split(int(split[1]), (), split[2].replace("bytesRate", "byteRate")),)  # renamed by #26639
    merge = _MERGE.fullmatch(text)
    assert merge is not None, text
    return as_acts((Merge(int(merge[1]), int(merge[2]), merge[3]),))


def main() -> None:
    """Prints what Pulsar, the strict profile and the default profile decide on one situation."""
    situation = EvaluationInput.from_json(sys.argv[1])
    with PulsarClasses(pulsar_jars(PULSAR_5)) as pulsar:
        (theirs,) = pulsar.decide([situation])
    sys.stdout.write(f"Pulsar {PULSAR_5}  {theirs}\n")
    for strict in (True, False):
        ours = decide(replace(situation, policy=replace(situation.policy, strict_pulsar=strict)))
        sys.stdout.write(f"{'strict' if strict else 'default'}  {as_acts(ours.decisions)}\n")
        for refusal in ours.refusals:
            sys.stdout.write(f"    {refusal}\n")


if __name__ == "__main__":
    main()
