"""The canonical texts of a whole cycle: inputs both ways, outcome and state.

The moves' part is ``balance_json``'s, put in as it is. Sorted keys, no spaces, integral numbers as integers: one value
has one text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from controller.bundles.domain.balancing import balance_text
from controller.bundles.domain.cycle import CycleInputs, CycleOutcome, CycleState
from controller.bundles.domain.load.averages import BundleLoad, TimeAverage
from controller.bundles.domain.load.stats import BundleStats
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.ring.hashes import edge_text
from controller.bundles.domain.splitting.algorithms.base import BundleTopic, PartLoad
from controller.bundles.domain.splitting.algorithms.refusal import SplitRefusal
from controller.bundles.domain.splitting.policy import SplitPolicy
from controller.bundles.domain.splitting.triggers import ChosenSplit, HeldSplit
from controller.domain.errors import InvalidInput
from controller.domain.knobs import write_knob


def cycle_to_json(inputs: CycleInputs) -> str:
    """The text a stored cycle is replayed from."""
    return _text(
        {
            "balance": json.loads(balance_text.inputs_to_json(inputs.balance)),
            "policies": {name: policy.to_document() for name, policy in inputs.policies.items()},
            "topics": {
                bundle: [
                    _write_topic(topic) for topic in sorted(topics, key=lambda t: (t.hash_value, t.name))
                ]
                for bundle, topics in inputs.topics.items()
            },
            "busy": sorted(inputs.busy),
            "hit_counts": _write_counts(inputs.hit_counts),
            "last_split_at_ms": _write_counts(inputs.last_split_at_ms),
        }
    )


def cycle_from_json(text: str) -> CycleInputs:
    """Reads ``cycle_to_json``'s; what it gives is decided on identically. Raises InvalidInput for another text."""
    try:
        document = json.loads(text)
        return CycleInputs(
            balance=balance_text.inputs_from_json(_text(document["balance"])),
            policies={name: SplitPolicy.from_document(held) for name, held in document["policies"].items()},
            topics={
                bundle: tuple(_read_topic(topic) for topic in topics)
                for bundle, topics in document["topics"].items()
            },
            busy=frozenset(document["busy"]),
            hit_counts=_read_counts(document["hit_counts"]),
            last_split_at_ms=_read_counts(document["last_split_at_ms"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"not the text of a cycle's inputs: {error!r}; give one as it was stored"
        ) from None


def outcome_to_json(outcome: CycleOutcome) -> str:
    """The answer's text: all of it, so that two answers are the same exactly where their texts are."""
    return _text(
        {
            "splits": [_write_split(split) for split in outcome.splits],
            "held_splits": [_write_held(held) for held in outcome.held_splits],
            "balance": json.loads(balance_text.proposals_to_json(outcome.proposals)),
            "passed_over": list(outcome.passed_over),
            "hit_counts": _write_counts(outcome.hit_counts),
            "last_split_at_ms": _write_counts(outcome.last_split_at_ms),
        }
    )


def state_to_json(state: CycleState) -> str:
    """What is kept between cycles."""
    return _text(
        {
            "balance": json.loads(balance_text.state_to_json(state.balance)),
            "averages": {
                bundle: [_write_average(load.short_term), _write_average(load.long_term)]
                for bundle, load in state.averages.items()
            },
            "sampled_at": state.sampled_at,
            "hit_counts": _write_counts(state.hit_counts),
            "last_split_at_ms": _write_counts(state.last_split_at_ms),
            "cold_cycles": _write_counts(state.cold_cycles),
        }
    )


def state_from_json(text: str) -> CycleState:
    """Reads ``state_to_json``'s; the empty object is the state before the first cycle."""
    document = json.loads(text)
    if not document:
        return CycleState()
    return CycleState(
        balance=balance_text.state_from_json(_text(document["balance"])),
        averages={
            bundle: BundleLoad(*(_read_average(values) for values in both))
            for bundle, both in document["averages"].items()
        },
        sampled_at=document["sampled_at"],
        hit_counts=_read_counts(document["hit_counts"]),
        last_split_at_ms=_read_counts(document["last_split_at_ms"]),
        cold_cycles=_read_counts(document.get("cold_cycles", {})),
    )


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _number(value: float) -> Any:
    return write_knob(float(value))


def _write_topic(topic: BundleTopic) -> list[Any]:
    stats = topic.stats
    rates = (stats.msg_rate_in, stats.msg_rate_out, stats.byte_rate_in, stats.byte_rate_out)
    counts = (stats.topic_count, stats.producer_count, stats.consumer_count, stats.cache_size_bytes)
    return [topic.name, topic.hash_value, [_number(rate) for rate in rates], list(counts)]


def _read_topic(value: list[Any]) -> BundleTopic:
    name, hash_value, (msg_in, msg_out, byte_in, byte_out), counts = value
    rates = float(msg_in), float(msg_out), float(byte_in), float(byte_out)
    return BundleTopic(name, hash_value, BundleStats(*rates, *counts))


def _write_average(average: TimeAverage) -> list[Any]:
    rates = (average.msg_rate_in, average.msg_rate_out, average.byte_rate_in, average.byte_rate_out)
    return [average.max_samples, average.sample_count, *(_number(rate) for rate in rates)]


def _read_average(values: list[Any]) -> TimeAverage:
    return TimeAverage(values[0], values[1], *map(float, values[2:]))


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
        "left_undone": [_write_refusal(refusal) for refusal in plan.left_undone],
    }


def _because(one: ChosenSplit | HeldSplit) -> dict[str, Any]:
    reading = one.because
    return {"metric": reading.metric, "value": _number(reading.value), "limit": _number(reading.limit)}


def _write_part(part: PartLoad) -> dict[str, Any]:
    rates = {"msg_rate": _number(part.msg_rate), "byte_rate": _number(part.byte_rate)}
    return {"bundle": part.bundle.range_text, "topic_count": part.topic_count, **rates}


def _write_held(held: HeldSplit) -> dict[str, Any]:
    return {
        "bundle": str(held.bundle),
        "because": _because(held),
        "reason": held.reason.value,
        "metric": held.metric,
        "value": _number(held.value),
        "needed": _number(held.needed),
        "refusal": held.refusal and _write_refusal(held.refusal),
    }


def _write_refusal(refusal: SplitRefusal) -> dict[str, Any]:
    return {
        "subject": refusal.subject,
        "reason": refusal.reason.value,
        "metric": refusal.metric,
        "value": _number(refusal.value),
        "needed": None if refusal.needed is None else _number(refusal.needed),
    }
