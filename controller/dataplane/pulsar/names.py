"""Builds names on a Pulsar cluster: of the topics behind segments, of the topics of dead letters, and of topics and
subscriptions in URLs.

Tenants and namespaces follow Pulsar's rule. A topic's own name may contain everything that Pulsar handles
correctly in all places (REST path, lookup, metadata path). A slash and control characters are refused here,
with an explanation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.names import quoted
from controller.domain.pulsar_names import NAME_PART, full_name
from controller.domain.segment import is_segment_descriptor

MAX_NAME_BYTES = 1000
"""Longest name in bytes. Percent-encoding makes it up to three times as long, and a broker accepts 8 KiB of
request line and headers by default.
"""
_SCALABLE = re.compile(r"topic://([^/]*)/([^/]*)/(.*)", re.DOTALL)
_PERSISTENT = re.compile(r"(?:persistent://)?([^/]*)/([^/]*)/(.*)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_INFIX = "-segment-"


def segment_topic(topic: str, descriptor: str) -> str:
    """Return the name of the topic behind a segment: `persistent://t/n/x-segment-0000-7fff-12` for segment
    `0000-7fff-12` of `topic://t/n/x`. The descriptor is not checked. Raises InvalidInput for a topic of another form,
    for a tenant, namespace or topic name that Pulsar does not allow, and for a result of more than `MAX_NAME_BYTES`.
    """
    match = _SCALABLE.fullmatch(topic)
    if match is None:
        raise InvalidInput(f"{topic!r} is not a scalable topic; name it as topic://tenant/namespace/name")
    tenant, namespace, local = match.groups()
    _check_entity("tenant", tenant, topic)
    _check_entity("namespace", namespace, topic)
    _check("topic", local, topic)
    name = f"persistent://{tenant}/{namespace}/{local}{_INFIX}{descriptor}"
    _check_length(name)
    return name


def dead_letter_topic(topic: str, subscription: str) -> str:
    """Return `persistent://t/n/x-s-DLQ`, the topic of the dead letters of subscription `s` of `topic://t/n/x`: the
    name that Pulsar's own clients use. The parts are not checked.
    """
    return f"persistent://{topic.removeprefix('topic://')}-{subscription}-DLQ"


def topic_path(backing_topic: str) -> str:
    """Return the topic's path behind `/admin/v2/`: `persistent/t/n/x`. `backing_topic` is the complete name
    `persistent://t/n/x`, or `t/n/x`, or `x` for public/default. The topic's own name `x` is percent-encoded. Raises
    InvalidInput for an invalid name, a topic that is not persistent, or a name of more than `MAX_NAME_BYTES`.
    """
    tenant, namespace, local = _split(backing_topic).groups()
    _check_entity("tenant", tenant, backing_topic)
    _check_entity("namespace", namespace, backing_topic)
    _check("topic", local, backing_topic)
    _check_length(backing_topic)
    return f"persistent/{tenant}/{namespace}/{quoted(local)}"


def namespace_path(namespace: str) -> str:
    """Return the namespace `t/n` unchanged, as a path.

    Pulsar's rule for names leaves nothing to encode. Raises InvalidInput for an invalid name of the tenant or
    the namespace, or a text without a slash.
    """
    tenant, slash, name = namespace.partition("/")
    if not slash:
        raise InvalidInput(f"{namespace!r} is not a namespace; write tenant/namespace")
    _check_entity("tenant", tenant, namespace)
    _check_entity("namespace", name, namespace)
    return f"{tenant}/{name}"


def subscription_path(subscription: str) -> str:
    """Return the subscription's name as a part of a path.

    The name is encoded twice, because the broker decodes it twice (`100%` encoded once causes an error 500).
    Raises InvalidInput for an empty name, a name of more than half of `MAX_NAME_BYTES`, or a name with
    control characters.
    """
    _check("subscription", subscription, subscription)
    if len(subscription.encode()) > MAX_NAME_BYTES // 2:
        raise InvalidInput(
            f"subscription {shown(subscription)} is longer than {MAX_NAME_BYTES // 2} bytes; shorten it"
        )
    return quote(quoted(subscription), safe="")


def cursor_name(subscription: str) -> str:
    """Return the name of the subscription's cursor in a managed ledger: form-encoded as in Java, so `größe`
    becomes `gr%C3%B6%C3%9Fe`.
    """
    return quote_plus(subscription, safe="*").replace("~", "%7E")


def segments_of(topics: Iterable[str], backing_topics: Iterable[str]) -> dict[str, list[str]]:
    """Return for each topic (`topic://t/n/x`) the names among `backing_topics` that `segment_topic` gives to segments
    of the topic, sorted as texts; an empty list for a topic without such names. Names that belong to none of the
    topics, or do not end in a segment's descriptor, are ignored. Raises InvalidInput for an invalid topic.
    """
    names: dict[str, list[str]] = {topic: [] for topic in topics}
    topic_of = {segment_topic(topic, ""): topic for topic in names}
    for name in sorted(backing_topics):
        start, separator, descriptor = name.rpartition(_INFIX)
        topic = topic_of.get(start + separator)
        if topic is not None and is_segment_descriptor(descriptor):
            names[topic].append(name)
    return names


def _split(name: str) -> re.Match[str]:
    """Return the tenant, the namespace and the topic's own name as groups of a match. Raises InvalidInput for
    a name of another form.
    """
    match = _PERSISTENT.fullmatch(full_name(name))
    if match is None:
        raise InvalidInput(
            f"{name!r} is not a persistent topic; name it as persistent://tenant/namespace/name"
        )
    return match


def _check_entity(kind: str, text: str, full_text: str) -> None:
    """Raise InvalidInput if `text` is not valid as the name of a tenant or namespace. `kind` and `full_text`
    appear in the message.
    """
    if NAME_PART.fullmatch(text) is None or text in (".", ".."):
        raise InvalidInput(
            f"{kind} {text!r} of {shown(full_text)}: Pulsar allows letters, digits and - = : . _ in it; rename it"
        )


def _check(kind: str, text: str, full_text: str) -> None:
    """Raise InvalidInput if `text` is empty, contains a control character or half of a surrogate pair, or contains a
    slash although `kind` is `topic`. `kind` is `topic` or `subscription`. `kind` and `full_text`, the name to which
    `text` belongs, appear in the message.
    """
    control_character = _CONTROL.search(text)
    if control_character is not None:
        raise InvalidInput(
            f"{kind} {shown(full_text)} contains the control character {control_character[0]!r}; remove it"
        )
    if not text:
        raise InvalidInput(f"{kind} name in {shown(full_text)} is empty; give one")
    if kind == "topic" and "/" in text:
        raise InvalidInput(
            f"topic {shown(full_text)}: Pulsar allows no slash in a topic's own name; replace it"
        )


def _check_length(name: str) -> None:
    """Raise InvalidInput for a topic's full name of more than `MAX_NAME_BYTES`."""
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidInput(
            f"{shown(name)} has {len(name.encode())} bytes; keep a segment's topic within {MAX_NAME_BYTES}"
        )
