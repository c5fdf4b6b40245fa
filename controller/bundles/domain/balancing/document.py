"""The balancing part of a cycle as a JSON document: inputs and state in both directions, the verdict only written.

`cycle_text` makes a text of the document. Fields are written and read explicitly, because stored texts outlive the code that wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from controller.bundles.domain.balancing.balance import BalanceInputs, BalanceVerdict
from controller.bundles.domain.balancing.moves import BrokerReading, Move, MoveRefusal
from controller.bundles.domain.balancing.pending import PendingMove
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.state import BalanceState, BrokerAverages
from controller.bundles.domain.canonical_json import RATES, read_load, write_load, write_number
from controller.bundles.domain.cluster import Broker, BrokerReport, Bundle, Cluster, NamespacePolicy
from controller.bundles.domain.load.broker_usage import RESOURCES, BrokerResources, ResourceUsage
from controller.bundles.domain.load.stats import BundleStats
from controller.domain.policy_parameters import write_parameter

_COUNTS: Final = ("topic_count", "producer_count", "consumer_count", "cache_size_bytes")
_FLOATS_BY_NAME: Final = ("usage_averages", "placement_averages")


def write_inputs(inputs: BalanceInputs) -> dict[str, Any]:
    """Return the document of all inputs of the decision."""
    return {
        "brokers": [_write_broker(broker) for broker in inputs.cluster.brokers],
        "bundles": [_write_bundle(bundle) for bundle in inputs.cluster.bundles],
        "policies": {name: _write_policy(policy) for name, policy in inputs.cluster.policies.items()},
        "shared_brokers": _write_names(inputs.cluster.shared_brokers),
        "settings": inputs.settings.to_document(),
        "state": write_state(inputs.state),
        "now_ms": inputs.now_ms,
        "pending": [[move.bundle_id, move.source, move.destination] for move in sorted(inputs.pending)],
    }


def read_inputs(document: Mapping[str, Any]) -> BalanceInputs:
    """Read the document of `write_inputs`; the decision on the result is identical. Raises an error of UNREADABLE
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
        state=read_state(document["state"]),
        now_ms=document["now_ms"],
        pending=tuple(PendingMove(*move) for move in document.get("pending", ())),
    )


def write_verdict(verdict: BalanceVerdict) -> dict[str, Any]:
    """Return the document of the moves, the refusals (`held`) and the state after the decision."""
    return {
        "moves": [_write_fields(move) for move in verdict.moves],
        "held": [_write_fields(refusal) for refusal in verdict.refusals],
        "state": write_state(verdict.state),
    }


def write_state(state: BalanceState) -> dict[str, Any]:
    """Return the document of the state between cycles, which `read_state` reads. The keys are the fields of `BalanceState`; each entry of
    `broker_averages` is a list of usage, byte rate and `reported_at`.
    """
    document = {f.name: getattr(state, f.name) for f in fields(state)}
    for name in _FLOATS_BY_NAME:
        document[name] = {key: write_number(value) for key, value in document[name].items()}
    document["broker_averages"] = {
        name: [write_number(averages.usage), write_number(averages.byte_rate), averages.reported_at]
        for name, averages in state.broker_averages.items()
    }
    return document


def read_state(document: Mapping[str, Any]) -> BalanceState:
    """Return the state that `write_state` wrote. A field of `BalanceState` that is absent has its default, but
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
