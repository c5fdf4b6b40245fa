"""The canonical texts of a whole cycle: inputs and state in both directions, the outcome only written.

`balancing.document` writes the balancing part; `canonical_json` defines the form of a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from controller.bundles.domain.balancing import document as balance_document
from controller.bundles.domain.canonical_json import (
    RATES,
    UNREADABLE,
    canonical_text,
    read_load,
    write_load,
    write_number,
)
from controller.bundles.domain.cycle import CycleInputs, CycleOutcome, CycleState
from controller.bundles.domain.load.stats import BundleStats
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.ring.hashes import edge_text
from controller.bundles.domain.splitting.algorithms.base import BundleTopic, CutRefusal, PartLoad
from controller.bundles.domain.splitting.policy import SplitPolicy
from controller.bundles.domain.splitting.triggers import ChosenSplit, SplitRefusal
from controller.domain.errors import InvalidInput


def cycle_to_json(inputs: CycleInputs) -> str:
    """Return the canonical text of a cycle's inputs, from which the cycle can be replayed (`cycle_from_json`)."""
    return canonical_text(
        {
            "balance": balance_document.write_inputs(inputs.balance),
            "policies": {name: policy.to_document() for name, policy in inputs.policies.items()},
            "topics": {
                bundle: [
                    _write_topic(topic) for topic in sorted(topics, key=lambda t: (t.hash_value, t.name))
                ]
                for bundle, topics in inputs.topics.items()
            },
            "busy": sorted(inputs.busy),
            "awaited_bundles": dict(inputs.awaited_bundles),
            "hit_counts": _write_counts(inputs.hit_counts),
            "last_split_at_ms": _write_counts(inputs.last_split_at_ms),
        }
    )


def cycle_from_json(text: str) -> CycleInputs:
    """Read the text of `cycle_to_json`; the decision on the result is identical. A key that older versions did not write may be absent.
    Raises InvalidInput for another text.
    """
    try:
        document = json.loads(text)
        return CycleInputs(
            balance=balance_document.read_inputs(document["balance"]),
            policies={
                name: SplitPolicy.from_document(policy) for name, policy in document["policies"].items()
            },
            topics={
                bundle: tuple(_read_topic(topic) for topic in topics)
                for bundle, topics in document["topics"].items()
            },
            busy=frozenset(document["busy"]),
            awaited_bundles=document.get("awaited_bundles", {}),
            hit_counts=_read_counts(document["hit_counts"]),
            last_split_at_ms=_read_counts(document["last_split_at_ms"]),
        )
    except UNREADABLE as error:
        raise InvalidInput(
            f"not the text of a cycle's inputs: {error!r}; give one as it was stored"
        ) from None


def outcome_to_json(outcome: CycleOutcome) -> str:
    """Return the canonical text of the whole outcome, which is compared and never read back. Two outcomes are equal exactly if their texts
    are equal.
    """
    return canonical_text(
        {
            "splits": [_write_split(split) for split in outcome.splits],
            "held_splits": [_write_split_refusal(refusal) for refusal in outcome.split_refusals],
            "balance": balance_document.write_verdict(outcome.balance),
            "passed_over": list(outcome.passed_over),
            "hit_counts": _write_counts(outcome.hit_counts),
            "last_split_at_ms": _write_counts(outcome.last_split_at_ms),
        }
    )


def state_to_json(state: CycleState) -> str:
    """Return the canonical text of the state between cycles, which `state_from_json` reads."""
    return canonical_text(
        {
            "balance": balance_document.write_state(state.balance),
            "averages": {bundle: write_load(load) for bundle, load in state.averages.items()},
            "sampled_at": state.sampled_at,
            "hit_counts": _write_counts(state.hit_counts),
            "last_split_at_ms": _write_counts(state.last_split_at_ms),
            "cold_cycles": _write_counts(state.cold_cycles),
        }
    )


def state_from_json(text: str) -> CycleState:
    """Read the text of `state_to_json`; the empty object is the state before the first cycle. Raises InvalidInput for another text."""
    try:
        document = json.loads(text)
        if document == {}:
            return CycleState()
        return CycleState(
            balance=balance_document.read_state(document["balance"]),
            averages={bundle: read_load(both) for bundle, both in document["averages"].items()},
            sampled_at=document["sampled_at"],
            hit_counts=_read_counts(document["hit_counts"]),
            last_split_at_ms=_read_counts(document["last_split_at_ms"]),
            cold_cycles=_read_counts(document.get("cold_cycles", {})),
        )
    except UNREADABLE as error:
        raise InvalidInput(
            f"not the text of the state between cycles: {error!r}; restore the stored text, or start again with {{}}"
        ) from None


def _write_topic(topic: BundleTopic) -> list[Any]:
    """Return the topic as a list: name, hash, the rates of `RATES`, and the numbers of topics, producers, consumers and cached bytes."""
    stats = topic.stats
    counts = (stats.topic_count, stats.producer_count, stats.consumer_count, stats.cache_size_bytes)
    rates = [write_number(getattr(stats, name)) for name in RATES]
    return [topic.name, topic.hash_value, rates, list(counts)]


def _read_topic(value: list[Any]) -> BundleTopic:
    name, hash_value, (msg_in, msg_out, byte_in, byte_out), counts = value
    rates = float(msg_in), float(msg_out), float(byte_in), float(byte_out)
    return BundleTopic(name, hash_value, BundleStats(*rates, *counts))


def _write_counts(counts: Mapping[NamespaceBundle, int]) -> dict[str, int]:
    return {str(bundle): count for bundle, count in counts.items()}


def _read_counts(value: Mapping[str, int]) -> dict[NamespaceBundle, int]:
    return {NamespaceBundle.parse(text): count for text, count in value.items()}


def _write_split(split: ChosenSplit) -> dict[str, Any]:
    plan = split.plan
    return {
        "bundle": str(split.bundle),
        "because": _because(split),
        "algorithm": plan.algorithm,
        "cuts": [edge_text(cut) for cut in plan.cuts],
        "parts": [_write_part(part) for part in plan.parts],
        "left_undone": [_write_cut_refusal(refusal) for refusal in plan.left_undone],
    }


def _because(split: ChosenSplit | SplitRefusal) -> dict[str, Any]:
    reading = split.because
    return {
        "metric": reading.metric,
        "value": write_number(reading.value),
        "limit": write_number(reading.limit),
    }


def _write_part(part: PartLoad) -> dict[str, Any]:
    rates = {"msg_rate": write_number(part.msg_rate), "byte_rate": write_number(part.byte_rate)}
    return {"bundle": part.bundle.range_text, "topic_count": part.topic_count, **rates}


def _write_split_refusal(refusal: SplitRefusal) -> dict[str, Any]:
    return {
        "bundle": str(refusal.bundle),
        "because": _because(refusal),
        "reason": refusal.reason.value,
        "metric": refusal.metric,
        "value": write_number(refusal.value),
        "needed": write_number(refusal.needed),
        "refusal": refusal.cut_refusal and _write_cut_refusal(refusal.cut_refusal),
    }


def _write_cut_refusal(refusal: CutRefusal) -> dict[str, Any]:
    return {
        "subject": refusal.subject,
        "reason": refusal.reason.value,
        "metric": refusal.metric,
        "value": write_number(refusal.value),
        "needed": None if refusal.needed is None else write_number(refusal.needed),
    }
