"""The canonical text of a balance cycle, inputs and answer, both ways.

Sorted keys, no spaces, integral numbers as integers: one value has one text, in any JSON. Written and read by hand
because the text outlives the code that wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from controller.bundles.domain.balancing.balance import BalanceInputs, Proposals
from controller.bundles.domain.balancing.moves import Held, HeldReason, Move, MoveReason
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.state import BalanceState, BrokerAverages
from controller.bundles.domain.cluster import Broker, BrokerReport, Bundle, Cluster, NamespacePolicy
from controller.bundles.domain.load.averages import BundleLoad, TimeAverage
from controller.bundles.domain.load.resources import RESOURCES, BrokerResources, ResourceUsage
from controller.bundles.domain.load.stats import BundleStats
from controller.domain.errors import InvalidInput
from controller.domain.knobs import write_knob

_RATES: Final = ("msg_rate_in", "msg_rate_out", "byte_rate_in", "byte_rate_out")
_COUNTS: Final = ("topic_count", "producer_count", "consumer_count", "cache_size_bytes")
_FLOATS_BY_NAME: Final = ("usage_averages", "placement_averages")


def inputs_to_json(inputs: BalanceInputs) -> str:
    """The text a stored cycle is replayed from."""
    return _text(
        {
            "brokers": [_write_broker(broker) for broker in inputs.cluster.brokers],
            "bundles": [_write_bundle(bundle) for bundle in inputs.cluster.bundles],
            "policies": {name: _write_policy(policy) for name, policy in inputs.cluster.policies.items()},
            "settings": inputs.settings.to_document(),
            "state": _write_state(inputs.state),
            "now_ms": inputs.now_ms,
        }
    )


def inputs_from_json(text: str) -> BalanceInputs:
    """Reads ``inputs_to_json``'s; what it gives is decided on identically. Raises InvalidInput for another text."""
    try:
        document = json.loads(text)
        return BalanceInputs(
            cluster=Cluster(
                tuple(_read_broker(value) for value in document["brokers"]),
                tuple(_read_bundle(value) for value in document["bundles"]),
                {name: _read_policy(value) for name, value in document["policies"].items()},
            ),
            settings=BalanceSettings.from_document(document["settings"]),
            state=_read_state(document["state"]),
            now_ms=document["now_ms"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"not the text of a balance cycle's inputs: {error!r}; give one as it was stored"
        ) from None


def proposals_to_json(proposals: Proposals) -> str:
    """The answer's text."""
    return _text(
        {
            "moves": [_write_flat(move) for move in proposals.moves],
            "held": [_write_flat(held) for held in proposals.held],
            "state": _write_state(proposals.state),
        }
    )


def proposals_from_json(text: str) -> Proposals:
    """Reads ``proposals_to_json``'s. Raises InvalidInput for another text."""
    try:
        document = json.loads(text)
        return Proposals(
            tuple(_read_move(value) for value in document["moves"]),
            tuple(_read_held(value) for value in document["held"]),
            _read_state(document["state"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"not the text of a balance cycle's answer: {error!r}; give one as it was stored"
        ) from None


def state_to_json(state: BalanceState) -> str:
    """The state alone, as it is kept between cycles."""
    return _text(_write_state(state))


def state_from_json(text: str) -> BalanceState:
    """Reads ``state_to_json``'s."""
    return _read_state(json.loads(text))


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _number(value: float) -> Any:
    return write_knob(float(value))


def _write_flat(value: Move | Held) -> dict[str, Any]:
    held = ((f.name, getattr(value, f.name)) for f in fields(value))
    return {name: write_knob(one) if isinstance(one, float) else one for name, one in held if one is not None}


def _read_move(value: Mapping[str, Any]) -> Move:
    return Move(
        value["bundle_id"],
        value["source"],
        value.get("destination"),
        float(value["load"]),
        value["metric"],
        MoveReason(value["reason"]),
    )


def _read_held(value: Mapping[str, Any]) -> Held:
    known = dict(value)
    return Held(HeldReason(known.pop("reason")), **known)


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
    return [_number(usage.usage), _number(usage.limit)]


def _read_usage(pair: list[Any]) -> ResourceUsage:
    return ResourceUsage(*map(float, pair))


def _write_stats(stats: BundleStats) -> dict[str, Any]:
    return {name: _number(getattr(stats, name)) for name in _RATES} | {
        name: getattr(stats, name) for name in _COUNTS
    }


def _read_stats(value: Mapping[str, Any]) -> BundleStats:
    rates: dict[str, Any] = {name: float(value[name]) for name in _RATES}
    return BundleStats(**rates, **{name: value[name] for name in _COUNTS})


def _write_bundle(bundle: Bundle) -> dict[str, Any]:
    load = bundle.load
    return {
        "id": bundle.bundle_id,
        "owner": bundle.owner,
        "stats": bundle.stats and _write_stats(bundle.stats),
        "load": load and [_write_average(load.short_term), _write_average(load.long_term)],
    }


def _read_bundle(value: Mapping[str, Any]) -> Bundle:
    stats, load = value["stats"], value["load"]
    return Bundle(
        value["id"],
        value["owner"],
        stats and _read_stats(stats),
        load and BundleLoad(_read_average(load[0]), _read_average(load[1])),
    )


def _write_average(average: TimeAverage) -> list[Any]:
    return [average.max_samples, average.sample_count, *(_number(getattr(average, name)) for name in _RATES)]


def _read_average(value: list[Any]) -> TimeAverage:
    most, count, *rates = value
    return TimeAverage(most, count, *map(float, rates))


def _write_policy(policy: NamespacePolicy) -> dict[str, Any]:
    brokers = None if policy.brokers is None else sorted(policy.brokers)
    return {"brokers": brokers, "anti_affinity_group": policy.anti_affinity_group}


def _read_policy(value: Mapping[str, Any]) -> NamespacePolicy:
    brokers = value["brokers"]
    return NamespacePolicy(None if brokers is None else frozenset(brokers), value["anti_affinity_group"])


def _write_state(state: BalanceState) -> dict[str, Any]:
    document = {f.name: getattr(state, f.name) for f in fields(state)}
    for name in _FLOATS_BY_NAME:
        document[name] = {key: _number(value) for key, value in document[name].items()}
    document["broker_averages"] = {
        name: [_number(one.usage), _number(one.byte_rate), one.reported_at]
        for name, one in state.broker_averages.items()
    }
    return document


def _read_state(document: Mapping[str, Any]) -> BalanceState:
    values = dict(document)
    for name in _FLOATS_BY_NAME:
        values[name] = {key: float(value) for key, value in values[name].items()}
    values["broker_averages"] = {
        name: BrokerAverages(float(usage), float(byte_rate), reported_at)
        for name, (usage, byte_rate, reported_at) in values["broker_averages"].items()
    }
    return BalanceState(**values)
