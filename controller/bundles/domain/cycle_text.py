"""The canonical texts of a whole cycle: inputs and state in both directions, the outcome only written.

Canonical JSON has sorted keys, no spaces, and integral numbers as integers. One value has one text. Stored texts outlive the code that
wrote them, so values are written and read here explicitly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from controller.bundles.domain.balancing.balance import BalanceInputs, BalanceVerdict, PendingMove
from controller.bundles.domain.balancing.moves import (
    BalanceState,
    BrokerAverages,
    BrokerReading,
    Move,
    MoveRefusal,
)
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Broker, BrokerReport, Bundle, Cluster, NamespacePolicy
from controller.bundles.domain.cycle import CycleInputs, CycleOutcome, CycleState
from controller.bundles.domain.load import (
    RESOURCES,
    BrokerResources,
    BundleLoad,
    BundleStats,
    ResourceUsage,
    TimeAverage,
)
from controller.bundles.domain.ring import NamespaceBundle, edge_text
from controller.bundles.domain.splitting.algorithms.base import BundleTopic, CutRefusal, PartLoad
from controller.bundles.domain.splitting.policy import SplitPolicy
from controller.bundles.domain.splitting.triggers import ChosenSplit, SplitRefusal
from controller.domain.errors import InvalidInput
from controller.domain.policy_parameters import write_parameter

RATES: Final = ("msg_rate_in", "msg_rate_out", "byte_rate_in", "byte_rate_out")
"""The rates of a reading or an average, in the order in which they are written."""

UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError)
"""Errors that reading raises for a text that holds something else."""


def canonical_text(document: Mapping[str, Any]) -> str:
    """Return the canonical text of a document. Raises ValueError for a number that JSON cannot hold (NaN or infinity)."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_number(value: float) -> Any:
    """Return an integer if the value is integral and below 2^53, a text such as "NaN" if it is not finite, else the value."""
    return write_parameter(float(value))


def write_load(load: BundleLoad) -> list[Any]:
    """Return both averages as lists of numbers: over the short term, then over the long term."""
    return [_write_average(load.short_term), _write_average(load.long_term)]


def read_load(value: Sequence[Any]) -> BundleLoad:
    """Read the value of `write_load`. Raises an error of UNREADABLE (KeyError, TypeError, ValueError or AttributeError) for another
    value.
    """
    return BundleLoad(*(_read_average(average) for average in value))


def _write_average(average: TimeAverage) -> list[Any]:
    rates = [write_number(getattr(average, name)) for name in RATES]
    return [average.max_samples, average.sample_count, *rates]


def _read_average(value: Sequence[Any]) -> TimeAverage:
    max_samples, count, *rates = value
    return TimeAverage(max_samples, count, *map(float, rates))


_COUNTS: Final = ("topic_count", "producer_count", "consumer_count", "cache_size_bytes")
_FLOATS_BY_NAME: Final = ("usage_averages", "placement_averages")


def write_balance_inputs(inputs: BalanceInputs) -> dict[str, Any]:
    """Return the document of all inputs of the decision."""
    return {
        "brokers": [_write_broker(broker) for broker in inputs.cluster.brokers],
        "bundles": [_write_bundle(bundle) for bundle in inputs.cluster.bundles],
        "policies": {name: _write_policy(policy) for name, policy in inputs.cluster.policies.items()},
        "shared_brokers": _write_names(inputs.cluster.shared_brokers),
        "settings": inputs.settings.to_document(),
        "state": write_balance_state(inputs.state),
        "now_ms": inputs.now_ms,
        "pending": [[move.bundle_id, move.source, move.destination] for move in sorted(inputs.pending)],
    }


def read_balance_inputs(document: Mapping[str, Any]) -> BalanceInputs:
    """Read the document of `write_balance_inputs`; the decision on the result is identical. Raises an error of UNREADABLE
    (KeyError, TypeError, ValueError or AttributeError) for another document, and InvalidInput for values that are not valid, such as
    unknown settings.
    """
    return BalanceInputs(
        cluster=Cluster(
            tuple(_read_broker(value) for value in document["brokers"]),
            tuple(_read_bundle(value) for value in document["bundles"]),
            {name: _read_policy(value) for name, value in document["policies"].items()},
            _read_names(document.get("shared_brokers")),
        ),
        settings=BalanceSettings.from_document(document["settings"]),
        state=read_balance_state(document["state"]),
        now_ms=document["now_ms"],
        pending=tuple(PendingMove(*move) for move in document.get("pending", ())),
    )


def write_balance_verdict(verdict: BalanceVerdict) -> dict[str, Any]:
    """Return the document of the moves, the refusals (`held`) and the state after the decision."""
    return {
        "moves": [_write_fields(move) for move in verdict.moves],
        "held": [_write_fields(refusal) for refusal in verdict.refusals],
        "state": write_balance_state(verdict.state),
    }


def write_balance_state(state: BalanceState) -> dict[str, Any]:
    """Return the document of the state between cycles, which `read_balance_state` reads. The keys are the fields of
    `BalanceState`; each entry of `broker_averages` is a list of usage, byte rate and `reported_at`.
    """
    document = {f.name: getattr(state, f.name) for f in fields(state)}
    for name in _FLOATS_BY_NAME:
        document[name] = {key: write_number(value) for key, value in document[name].items()}
    document["broker_averages"] = {
        name: [write_number(averages.usage), write_number(averages.byte_rate), averages.reported_at]
        for name, averages in state.broker_averages.items()
    }
    return document


def read_balance_state(document: Mapping[str, Any]) -> BalanceState:
    """Return the state that `write_balance_state` wrote. A field of `BalanceState` that is absent has its default, but
    `broker_averages`, `usage_averages` and `placement_averages` are required. Raises an error of UNREADABLE
    (KeyError, TypeError, ValueError or AttributeError) if an average is missing or has another form, and for an
    unknown key.
    """
    values = dict(document)
    for name in _FLOATS_BY_NAME:
        values[name] = {key: float(value) for key, value in values[name].items()}
    values["broker_averages"] = {
        name: BrokerAverages(float(usage), float(byte_rate), reported_at)
        for name, (usage, byte_rate, reported_at) in values["broker_averages"].items()
    }
    return BalanceState(**values)


def _write_fields(value: Move | MoveRefusal) -> dict[str, Any]:
    """Return the fields by name as JSON values, without those that are None."""
    values = ((f.name, getattr(value, f.name)) for f in fields(value))
    return {name: _write_value(field_value) for name, field_value in values if field_value is not None}


def _write_value(value: Any) -> Any:
    if isinstance(value, BrokerReading):
        return {name: _write_value(field_value) for name, field_value in asdict(value).items()}
    return write_parameter(value) if isinstance(value, float) else value


def _write_broker(broker: Broker) -> dict[str, Any]:
    report = broker.report
    return {
        "name": broker.name,
        "failure_domain": broker.failure_domain,
        "report": report
        and {
            "resources": {name: _write_usage(getattr(report.resources, name)) for name in RESOURCES},
            "stats": _write_stats(report.stats),
            "reported_at": report.reported_at,
        },
    }


def _read_broker(value: Mapping[str, Any]) -> Broker:
    report = value["report"]
    return Broker(
        value["name"],
        report
        and BrokerReport(
            BrokerResources(**{name: _read_usage(pair) for name, pair in report["resources"].items()}),
            _read_stats(report["stats"]),
            report["reported_at"],
        ),
        value["failure_domain"],
    )


def _write_usage(usage: ResourceUsage) -> list[Any]:
    return [write_number(usage.usage), write_number(usage.limit)]


def _read_usage(pair: list[Any]) -> ResourceUsage:
    return ResourceUsage(*map(float, pair))


def _write_stats(stats: BundleStats) -> dict[str, Any]:
    rates = {name: write_number(getattr(stats, name)) for name in RATES}
    return rates | {name: getattr(stats, name) for name in _COUNTS}


def _read_stats(value: Mapping[str, Any]) -> BundleStats:
    rates: dict[str, Any] = {name: float(value[name]) for name in RATES}
    return BundleStats(**rates, **{name: value[name] for name in _COUNTS})


def _write_bundle(bundle: Bundle) -> dict[str, Any]:
    return {
        "id": bundle.bundle_id,
        "owner": bundle.owner,
        "stats": bundle.stats and _write_stats(bundle.stats),
        "load": bundle.load and write_load(bundle.load),
    }


def _read_bundle(value: Mapping[str, Any]) -> Bundle:
    stats, load = value["stats"], value["load"]
    return Bundle(value["id"], value["owner"], stats and _read_stats(stats), load and read_load(load))


def _write_policy(policy: NamespacePolicy) -> dict[str, Any]:
    return {"brokers": _write_names(policy.brokers), "anti_affinity_group": policy.anti_affinity_group}


def _read_policy(value: Mapping[str, Any]) -> NamespacePolicy:
    return NamespacePolicy(_read_names(value["brokers"]), value["anti_affinity_group"])


def _write_names(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _read_names(value: list[str] | None) -> frozenset[str] | None:
    return None if value is None else frozenset(value)


def cycle_to_json(inputs: CycleInputs) -> str:
    """Return the canonical text of a cycle's inputs, from which the cycle can be replayed (`cycle_from_json`)."""
    return canonical_text(
        {
            "balance": write_balance_inputs(inputs.balance),
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
            balance=read_balance_inputs(document["balance"]),
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
            "balance": write_balance_verdict(outcome.balance),
            "passed_over": list(outcome.passed_over),
            "hit_counts": _write_counts(outcome.hit_counts),
            "last_split_at_ms": _write_counts(outcome.last_split_at_ms),
        }
    )


def state_to_json(state: CycleState) -> str:
    """Return the canonical text of the state between cycles, which `state_from_json` reads."""
    return canonical_text(
        {
            "balance": write_balance_state(state.balance),
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
            balance=read_balance_state(document["balance"]),
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
