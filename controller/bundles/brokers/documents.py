"""Decodes answers of brokers: load report, statistics of topics, boundaries, ownership, metrics page.

Only the fields that are used are decoded, by their types. So the statistics of 100,000 topics, with all their publishers and consumers,
cost as much as the counts alone. A document of another shape raises DataPlaneUnavailable, and the broker counts as silent. A figure that
is not a number (null, or NaN, which Jackson writes as a text) is unknown, and the other figures of the document count.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from controller.bundles.domain.load import RESOURCES, BrokerResources, BundleStats, ResourceUsage
from controller.bundles.domain.placement_rules import IsolationPolicy
from controller.bundles.domain.ring import NamespaceBundle, parse_edge, parse_range
from controller.domain.errors import DataPlaneUnavailable, InvalidInput

Document = TypeVar("Document")
Figure = Any
"""A number, or any other value that a broker writes where a number is expected."""

MOST = 2**50
"""The largest rate or count that is accepted from a broker. The sum of millions of such values is still exact."""


@dataclass(frozen=True, slots=True)
class SystemReport:
    """Resource usage of a broker as it reports it. `source` is `load-report` or `metrics`.

    `cache_size_bytes` is by bundle; empty if the broker does not report it.
    """

    source: str
    version: str
    resources: BrokerResources
    cache_size_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TopicReport:
    """One topic as its broker reports it. `bundle` is the range that the broker has it in."""

    namespace: str
    bundle: str
    topic: str
    stats: BundleStats


class _Usage(msgspec.Struct):
    usage: Figure = None
    limit: Figure = None


class _LastStats(msgspec.Struct):
    cache_size: Figure = msgspec.field(default=None, name="cacheSize")


class _LoadReport(msgspec.Struct):
    cpu: _Usage | None
    memory: _Usage | None
    direct_memory: _Usage | None = msgspec.field(name="directMemory")
    bandwidth_in: _Usage | None = msgspec.field(name="bandwidthIn")
    bandwidth_out: _Usage | None = msgspec.field(name="bandwidthOut")
    version: str | None = msgspec.field(default=None, name="brokerVersionString")
    last_stats: dict[str, _LastStats | None] | None = msgspec.field(default=None, name="lastStats")


class _Nothing(msgspec.Struct):
    pass


class _Subscription(msgspec.Struct):
    consumers: list[_Nothing] | None = None


class _Topic(msgspec.Struct):
    msg_rate_in: Figure = msgspec.field(default=None, name="msgRateIn")
    msg_rate_out: Figure = msgspec.field(default=None, name="msgRateOut")
    byte_rate_in: Figure = msgspec.field(default=None, name="msgThroughputIn")
    byte_rate_out: Figure = msgspec.field(default=None, name="msgThroughputOut")
    producer_count: Figure = msgspec.field(default=None, name="producerCount")
    subscriptions: dict[str, _Subscription | None] | None = None


class _Boundaries(msgspec.Struct):
    boundaries: list[str]


class _Failover(msgspec.Struct):
    parameters: dict[str, str] = msgspec.field(default_factory=dict)


class _IsolationPolicy(msgspec.Struct):
    namespaces: list[str] = msgspec.field(default_factory=list)
    primary: list[str] = msgspec.field(default_factory=list)
    secondary: list[str] = msgspec.field(default_factory=list)
    failover: _Failover = msgspec.field(default_factory=_Failover, name="auto_failover_policy")


class _FailureDomain(msgspec.Struct):
    brokers: list[str] = msgspec.field(default_factory=list)


class _HashPositions(msgspec.Struct):
    positions: dict[str, int] = msgspec.field(name="topicHashPositions")


_LOAD_REPORT = msgspec.json.Decoder(_LoadReport)
_TOPICS = msgspec.json.Decoder(dict[str, dict[str, dict[str, dict[str, _Topic]]]])
_BOUNDARIES = msgspec.json.Decoder(_Boundaries)
_TEXT = msgspec.json.Decoder(str)
_OWNED = msgspec.json.Decoder(dict[str, _Nothing])
_ISOLATION = msgspec.json.Decoder(dict[str, _IsolationPolicy])
_DOMAINS = msgspec.json.Decoder(dict[str, _FailureDomain])
_POSITIONS = msgspec.json.Decoder(_HashPositions)

_GAUGE = re.compile(
    rb"^pulsar_(?:lb_(cpu|memory|directMemory|bandwidth_in|bandwidth_out)_usage|version_info)\{([^\n]*)\} (\S+)",
    re.MULTILINE,
)
_VERSION = re.compile(rb'(?:^|,)version="([^"]*)"')
_SIGNALS = {b"directMemory": "direct_memory"}


def load_report(body: bytes) -> SystemReport:
    """Decode `/admin/v2/broker-stats/load-report` of the modular load manager. A resource that is missing or null, or
    whose figures are not numbers, is unknown (limit 0). A missing version is empty. The report also has the cached
    bytes of each listed bundle. Raises DataPlaneUnavailable for a document of another shape.
    """
    report = _read(_LOAD_REPORT, body, "load report")
    usages = {name: getattr(report, name) for name in RESOURCES}
    return SystemReport(
        "load-report",
        report.version or "",
        BrokerResources(
            **{name: _usage(entry.usage, entry.limit) for name, entry in usages.items() if entry}
        ),
        {bundle: _count(entry.cache_size) for bundle, entry in (report.last_stats or {}).items() if entry},
    )


def metrics_report(page: bytes) -> SystemReport:
    """Decode the system figures of a metrics page, which every load manager writes. They are percentages, so each limit is 100. A resource
    that is missing, or whose figure is not a number, is unknown (limit 0); a missing version is empty.

    Raises DataPlaneUnavailable for a page without the usage of the CPU.
    """
    usages: dict[str, ResourceUsage] = {}
    version = ""
    for signal, labels, value in _GAUGE.findall(page):
        if signal:
            usages[_SIGNALS.get(signal, signal.decode())] = _usage(value.decode(errors="replace"), 100.0)
        elif match := _VERSION.search(labels):
            version = match[1].decode(errors="replace")
    if "cpu" not in usages:
        raise DataPlaneUnavailable(
            "the metrics page of the broker has no usage: pulsar_lb_cpu_usage is missing"
        )
    return SystemReport("metrics", version, BrokerResources(**usages), {})


def topics(body: bytes) -> Iterator[TopicReport]:
    """Decode `/admin/v2/broker-stats/topics`: all topics of the broker, persistent or not, those of system namespaces included; each
    partition is a topic. The body is decoded when the iteration begins, and DataPlaneUnavailable is raised then for a document of another
    shape.
    """
    for namespace, bundles in _read(_TOPICS, body, "statistics of topics").items():
        for bundle, domains in bundles.items():
            for named in domains.values():
                for name, topic in named.items():
                    yield TopicReport(namespace, bundle, name, _stats(topic))


def boundaries(body: bytes) -> tuple[int, ...]:
    """Decode `/admin/v2/namespaces/T/N/bundles`: the boundaries of the bundles as hashes. Order and completeness are not checked. Raises
    DataPlaneUnavailable for an invalid boundary or a document of another shape.
    """
    texts = _read(_BOUNDARIES, body, "list of bundles").boundaries
    try:
        return tuple(parse_edge(text) for text in texts)
    except InvalidInput as error:
        raise DataPlaneUnavailable(f"a list of bundles has an invalid boundary: {error}") from error


def owned_bundles(body: bytes) -> tuple[NamespaceBundle, ...]:
    """Decode `/admin/v2/brokers/C/B/ownedNamespaces`. Return the bundles by namespace and lower boundary, without entries that are not
    bundles of tenant/namespace. Raises DataPlaneUnavailable for a document of another shape.
    """
    owned = []
    for text in _read(_OWNED, body, "list of owned bundles"):
        try:
            namespace, _, range_text = text.rpartition("/")
            owned.append(NamespaceBundle(namespace, *parse_range(range_text)))
        except InvalidInput:  # pulsar/CLUSTER/HOST:PORT of old brokers
            continue
    return tuple(sorted(owned, key=lambda bundle: (bundle.namespace, bundle.lower)))


def isolation_policies(body: bytes) -> tuple[IsolationPolicy, ...]:
    """Decode `/admin/v2/clusters/C/namespaceIsolationPolicies`, in the order of the answer. A policy without `min_limit` has -1 primaries
    as its minimum. Raises DataPlaneUnavailable for a document of another shape, or a `min_limit` that is not a number.
    """
    return tuple(
        IsolationPolicy(
            name,
            tuple(policy.namespaces),
            tuple(policy.primary),
            tuple(policy.secondary),
            _least_primaries(policy.failover.parameters.get("min_limit", "-1")),
        )
        for name, policy in _read(_ISOLATION, body, "list of isolation policies").items()
    )


def _least_primaries(text: str) -> int:
    """Return the number in a `min_limit`. Raises DataPlaneUnavailable for another text."""
    try:
        return int(text)
    except ValueError:
        raise DataPlaneUnavailable(
            f"an isolation policy has the min_limit {text!r}, which is not a number"
        ) from None


def failure_domains(body: bytes) -> dict[str, str]:
    """Decode `/admin/v2/clusters/C/failureDomains`: the failure domain of each broker that has one; of several, the last by name. Raises
    DataPlaneUnavailable for a document of another shape.
    """
    domains = _read(_DOMAINS, body, "list of failure domains")
    return {broker: name for name, domain in sorted(domains.items()) for broker in domain.brokers}


def anti_affinity_group(body: bytes) -> str | None:
    """Decode `/admin/v2/namespaces/T/N/antiAffinity`, a plain text or a JSON text. Return None if there is no group. Raises
    DataPlaneUnavailable for a malformed JSON text.
    """
    text = body.decode(errors="replace").strip()
    if text.startswith('"'):
        text = str(_read(_TEXT, body, "anti-affinity group"))
    return text if text and text != "null" else None


def topic_hashes(body: bytes) -> dict[str, int]:
    """Decode `…/{bundle}/topicHashPositions`: the hashes by complete names of topics. Raises DataPlaneUnavailable for a document of another
    shape.
    """
    return _read(_POSITIONS, body, "list of topic hashes").positions


def _read(decoder: msgspec.json.Decoder[Document], body: bytes, kind: str) -> Document:
    """Return the document in the body. Raises DataPlaneUnavailable, which names the `kind` of the document, for a body of another shape."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = error
    try:  # some writers leave NaN and Infinity without quotation marks
        return msgspec.convert(json.loads(body), decoder.type)
    except (msgspec.ValidationError, ValueError, RecursionError):
        raise DataPlaneUnavailable(f"the answer is not a {kind}: {reason}") from None


def _number(figure: Figure) -> float | None:
    """Return the number, which may be written as a text. None if the figure is not a number, is not finite, or is outside -MOST to MOST."""
    try:
        number = float(figure)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) <= MOST else None


def _usage(usage: Figure, limit: Figure) -> ResourceUsage:
    """Return the usage; the unknown usage (limit 0) if a figure is not an accepted number, or if the usage is negative."""
    used, there_is = _number(usage), _number(limit)
    return ResourceUsage() if used is None or there_is is None or used < 0 else ResourceUsage(used, there_is)


def _stats(topic: _Topic) -> BundleStats:
    """Return the figures of a topic; its topic count is 1, and its consumers are those of all its subscriptions. A figure that is not a
    number (a broker divides by the time since its last count), is negative or is above MOST counts as 0.
    """
    subscriptions = (topic.subscriptions or {}).values()
    return BundleStats(
        msg_rate_in=_rate(topic.msg_rate_in),
        msg_rate_out=_rate(topic.msg_rate_out),
        byte_rate_in=_rate(topic.byte_rate_in),
        byte_rate_out=_rate(topic.byte_rate_out),
        topic_count=1,
        producer_count=_count(topic.producer_count),
        consumer_count=sum(
            len(subscription.consumers or ()) for subscription in subscriptions if subscription
        ),
    )


def _rate(rate: Figure) -> float:
    """Return the figure as a rate; 0 for a negative figure, and for a figure that `_number` does not accept."""
    return max(0.0, _number(rate) or 0.0)


def _count(count: Figure) -> int:
    return int(_rate(count))
