"""Pulsar's rule for the names of topics and namespaces. Short forms are completed as Pulsar's own tools complete them.

The broker finds a topic's bundle by the hash of the topic's complete name:
`persistent://tenant/namespace/topic-partition-3`. The short name of the same topic has another hash, so only complete
names are hashed (`controller/bundles/domain/ring.py`). The name that a segment's log has on a cluster, and
names in paths, are in `dataplane/pulsar/names.py`; names that people give to topics of Cleave are in `names.py`.
Pulsar's own namespaces are recognized by their names.
"""

from __future__ import annotations

import re

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown

DOMAINS = ("persistent", "non-persistent", "topic", "segment")
"""Kinds of topics. The last two are Pulsar 5's scalable topics, whose local names may contain slashes (PIP-460)."""

_DEFAULT_NAMESPACE = "public/default"
NAME_PART = re.compile(r"[-=:.\w]+", re.ASCII)
"""A tenant, or a namespace without its tenant."""
_PARTITION = re.compile(r"-partition-(0|[1-9][0-9]*)", re.ASCII)
_OF_ONE_BROKER = re.compile(r"(?:pulsar|sla-monitor)/[^:]+:\d+")


def full_name(name: str, domain: str = "persistent") -> str:
    """Return the complete name of a short form without checking it: `x` is `persistent://public/default/x`, `t/n/x`
    is `persistent://t/n/x`, each with the given `domain`. A name with `://` is returned unchanged.
    """
    if "://" in name:
        return name
    return f"{domain}://{name}" if "/" in name else f"{domain}://{_DEFAULT_NAMESPACE}/{name}"


def canonical_topic_name(name: str) -> str:
    """Return the complete name: `x` means `persistent://public/default/x`, `t/n/x` means `persistent://t/n/x`; a
    complete name with a domain of `DOMAINS` is returned unchanged.

    `pulsar-admin` and every client complete names in the same way. Raises InvalidInput for a text that Pulsar would not
    accept as a name, for half of a surrogate pair, and for a name that contains a cluster, which Pulsar 5 no longer
    supports.
    """
    if "://" not in name and name.count("/") not in (0, 2):
        raise InvalidInput(
            f"topic {name!r} is neither a topic nor tenant/namespace/topic; "
            "write it as persistent://tenant/namespace/topic"
        )
    domain, _, path = full_name(name).partition("://")
    if domain not in DOMAINS:
        raise InvalidInput(f"topic {name!r} has the domain {domain!r}; give one of {', '.join(DOMAINS)}")
    parts = path.split("/", 2)
    if len(parts) < 3 or not parts[2].strip():
        raise InvalidInput(f"topic {name!r} is not complete; write it as {domain}://tenant/namespace/topic")
    if "/" in parts[2] and domain in DOMAINS[:2]:
        raise InvalidInput(
            f"topic {name!r} has more than three parts; "
            f"write it as {domain}://tenant/namespace/topic, without a cluster"
        )
    checked_namespace("/".join(parts[:2]))
    complete = f"{domain}://{path}"
    if any("\ud800" <= letter <= "\udfff" for letter in complete):
        raise InvalidInput(
            f"topic {name!r} contains half of a surrogate pair and has no UTF-8 form; correct its encoding"
        )
    return complete


def checked_namespace(namespace: str) -> str:
    """Return `tenant/namespace` unchanged. Raises InvalidInput unless it consists of two names of letters, digits and
    `-=:._`.
    """
    parts = namespace.split("/")
    if len(parts) != 2 or not all(NAME_PART.fullmatch(part) for part in parts):
        raise InvalidInput(
            f"namespace {shown(namespace)} is not a name; write it as tenant/namespace, each of letters, digits and -=:._"
        )
    return namespace


def namespace_of(topic: str) -> str:
    """Return `tenant/namespace` of a topic in any of its forms. Raises InvalidInput for a text that Pulsar would not
    accept as a topic's name.
    """
    path = canonical_topic_name(topic).partition("://")[2]
    return "/".join(path.split("/", 2)[:2])


def partitioned_topic_of(topic: str) -> str:
    """Return the complete name of a topic without `-partition-N`, as people name the topic; the complete name itself if
    the topic is not a partition. Raises InvalidInput for a text that Pulsar would not accept as a topic's name.
    """
    complete = canonical_topic_name(topic)
    base, separator, index = complete.rpartition("-partition-")
    return base if separator and _PARTITION.fullmatch(separator + index) else complete


def belongs_to_a_broker(namespace: str) -> bool:
    """Return True if the namespace is one broker's own (heartbeats) and stays there: `pulsar/HOST:PORT`,
    `sla-monitor/HOST:PORT`.
    """
    return _OF_ONE_BROKER.fullmatch(namespace) is not None


def is_system_namespace(namespace: str) -> bool:
    """Return True if Pulsar uses the namespace itself: `pulsar/system`, and each namespace of one broker
    (`belongs_to_a_broker`).
    """
    return namespace == "pulsar/system" or belongs_to_a_broker(namespace)
