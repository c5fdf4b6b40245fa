"""Names on a Pulsar cluster: of the topics behind segments, and how topics and subscriptions are written in a URL.

Tenants and namespaces follow Pulsar's own rule. A topic's own name may hold whatever Pulsar handles rightly everywhere
(REST path, lookup, metadata path). The slash and control characters are refused here, with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from controller.domain.errors import InvalidInput
from controller.domain.names import quoted
from controller.domain.pulsar_names import NAME_PART, full_name
from controller.domain.segment import is_segment_descriptor
from controller.domain.shown import shown

MAX_NAME_BYTES = 1000
"""Percent-encoded up to three times as long; a broker takes 8 KiB of request line and headers (its default)."""
_SCALABLE = re.compile(r"topic://([^/]*)/([^/]*)/(.*)", re.DOTALL)
_PERSISTENT = re.compile(r"(?:persistent://)?([^/]*)/([^/]*)/(.*)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_INFIX = "-segment-"


def segment_topic(topic: str, descriptor: str) -> str:
    """`persistent://t/n/x-segment-0000-7fff-12` for that segment of `topic://t/n/x`; InvalidInput where Pulsar has no
    such name.
    """
    found = _SCALABLE.fullmatch(topic)
    if found is None:
        raise InvalidInput(f"{topic!r} is not a scalable topic; name it as topic://tenant/namespace/name")
    tenant, namespace, local = found.groups()
    _check_entity("tenant", tenant, topic)
    _check_entity("namespace", namespace, topic)
    _check("topic", local, topic)
    name = f"persistent://{tenant}/{namespace}/{local}{_INFIX}{descriptor}"
    _check_length(name)
    return name


def topic_path(backing_topic: str) -> str:
    """`persistent/t/n/x`, each part percent-encoded: what follows `/admin/v2/`. InvalidInput for no such name."""
    tenant, namespace, local = _split(backing_topic).groups()
    _check_entity("tenant", tenant, backing_topic)
    _check_entity("namespace", namespace, backing_topic)
    _check("topic", local, backing_topic)
    _check_length(backing_topic)
    return f"persistent/{tenant}/{namespace}/{quoted(local)}"


def namespace_path(namespace: str) -> str:
    """`t/n`, checked. Pulsar's rule for names leaves nothing to encode."""
    tenant, slash, name = namespace.partition("/")
    if not slash:
        raise InvalidInput(f"{namespace!r} is no namespace; write tenant/namespace")
    _check_entity("tenant", tenant, namespace)
    _check_entity("namespace", name, namespace)
    return f"{tenant}/{name}"


def subscription_path(subscription: str) -> str:
    """A subscription's part of a path. The broker decodes it twice (`100%` sent once is an error 500), so it is
    encoded twice.
    """
    _check("subscription", subscription, subscription)
    if len(subscription.encode()) > MAX_NAME_BYTES // 2:
        raise InvalidInput(
            f"subscription {shown(subscription)} is longer than {MAX_NAME_BYTES // 2} bytes; shorten it"
        )
    return quote(quoted(subscription), safe="")


def cursor_name(subscription: str) -> str:
    """What a managed ledger calls the subscription's cursor: form-encoded as Java does it, `größe` is
    `gr%C3%B6%C3%9Fe`.
    """
    return quote_plus(subscription, safe="*").replace("~", "%7E")


def segments_of(topics: Iterable[str], backing_topics: Iterable[str]) -> dict[str, list[str]]:
    """For each topic those names, sorted, that `segment_topic` gives to some segment of it."""
    found: dict[str, list[str]] = {topic: [] for topic in topics}
    topic_of = {segment_topic(topic, ""): topic for topic in found}
    for name in sorted(backing_topics):
        start, separator, descriptor = name.rpartition(_INFIX)
        topic = topic_of.get(start + separator)
        if topic is not None and is_segment_descriptor(descriptor):
            found[topic].append(name)
    return found


def _split(name: str) -> re.Match[str]:
    found = _PERSISTENT.fullmatch(full_name(name))
    if found is None:
        raise InvalidInput(
            f"{name!r} is not a persistent topic; name it as persistent://tenant/namespace/name"
        )
    return found


def _check_entity(kind: str, text: str, whole: str) -> None:
    if NAME_PART.fullmatch(text) is None or text in (".", ".."):
        raise InvalidInput(
            f"{kind} {text!r} of {shown(whole)}: Pulsar allows letters, digits and - = : . _ in it; rename it"
        )


def _check(kind: str, text: str, whole: str) -> None:
    odd = _CONTROL.search(text)
    if odd is not None:
        raise InvalidInput(f"{kind} {shown(whole)} holds the control character {odd[0]!r}; leave it out")
    if not text:
        raise InvalidInput(f"{kind} name in {shown(whole)} is empty; give one")
    if kind == "topic" and "/" in text:
        raise InvalidInput(f"topic {shown(whole)}: Pulsar allows no slash in a topic's own name; replace it")


def _check_length(name: str) -> None:
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidInput(
            f"{shown(name)} has {len(name.encode())} bytes; keep a segment's topic within {MAX_NAME_BYTES}"
        )
