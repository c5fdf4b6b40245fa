"""Names of scalable topics and their segments as the admin API of Pulsar 5 wants them in a path."""

from __future__ import annotations

import re

from controller.dataplane.pulsar.names import namespace_path
from controller.domain.errors import InvalidInput
from controller.domain.names import quoted
from controller.domain.segment import parse_segment_descriptor

_TOPIC = re.compile(r"topic://([^/]+/[^/]+)/(.+)", re.DOTALL)
_SEGMENT = re.compile(r"segment://([^/]+/[^/]+)/(.+)/([^/]+)", re.DOTALL)


def topic_path(topic: str) -> str:
    """`scalable/t/n/x`, each part percent-encoded: what follows `/admin/v2/`."""
    found = _TOPIC.fullmatch(topic)
    if found is None:
        raise InvalidInput(f"{topic!r} is not a scalable topic; name it as topic://tenant/namespace/name")
    return f"scalable/{namespace_path(found[1])}/{quoted(found[2])}"


def segment_path(backing_topic: str) -> str:
    """`segments/t/n/x/0000-7fff-12`."""
    found = _parts(backing_topic)
    return f"segments/{namespace_path(found[1])}/{quoted(found[2])}/{found[3]}"


def lookup_path(backing_topic: str) -> str:
    """`/lookup/v2/topic/segment/t/n/x%2F0000-7fff-12`: where a broker says who serves the log. `backing_topic` is the
    name that the broker tells, which is encoded once already.
    """
    found = _parts(backing_topic)
    return f"/lookup/v2/topic/segment/{namespace_path(found[1])}/{quoted(f'{found[2]}/{found[3]}')}"


def topic_of(backing_topic: str) -> tuple[str, int]:
    """The topic a segment's log belongs to, and the segment's id."""
    found = _parts(backing_topic)
    return f"topic://{found[1]}/{found[2]}", parse_segment_descriptor(found[3])[1]


def _parts(backing_topic: str) -> re.Match[str]:
    found = _SEGMENT.fullmatch(backing_topic)
    if found is None:
        raise InvalidInput(
            f"{backing_topic!r} is no segment of a scalable topic; write segment://tenant/namespace/name/0000-7fff-12"
        )
    parse_segment_descriptor(found[3])
    return found
