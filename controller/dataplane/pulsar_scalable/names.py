"""Converts names of scalable topics and segments to paths of the admin API of Pulsar 5."""

from __future__ import annotations

import re

from controller.dataplane.pulsar.names import namespace_path
from controller.domain.errors import InvalidInput
from controller.domain.names import quoted
from controller.domain.segment import parse_segment_descriptor

_TOPIC = re.compile(r"topic://([^/]+/[^/]+)/(.+)", re.DOTALL)
_SEGMENT = re.compile(r"segment://([^/]+/[^/]+)/(.+)/([^/]+)", re.DOTALL)


def topic_path(topic: str) -> str:
    """Return `scalable/t/n/x`, the path behind `/admin/v2/`. The topic's own name `x` is percent-encoded, its
    slashes too; tenant and namespace need no encoding.

    Raises InvalidInput for a name of another form than `topic://t/n/x`, and for a tenant or namespace that
    Pulsar does not allow.
    """
    match = _TOPIC.fullmatch(topic)
    if match is None:
        raise InvalidInput(f"{topic!r} is not a scalable topic; name it as topic://tenant/namespace/name")
    return f"scalable/{namespace_path(match[1])}/{quoted(match[2])}"


def segment_path(backing_topic: str) -> str:
    """Return `segments/t/n/x/0000-7fff-12`, the path behind `/admin/v2/`. The topic's own name `x` is
    percent-encoded; the other parts need no encoding. Raises InvalidInput for a name that is not of a segment.
    """
    parts = _parts(backing_topic)
    return f"segments/{namespace_path(parts[1])}/{quoted(parts[2])}/{parts[3]}"


def lookup_path(backing_topic: str) -> str:
    """Return the path at which a broker answers which broker serves the log:
    `/lookup/v2/topic/segment/t/n/x%2F0000-7fff-12`. `backing_topic` is the broker's name for the log, in which the
    topic's own name is already percent-encoded once. Raises InvalidInput if the name is not that of a segment's log.
    """
    parts = _parts(backing_topic)
    return f"/lookup/v2/topic/segment/{namespace_path(parts[1])}/{quoted(f'{parts[2]}/{parts[3]}')}"


def topic_of(backing_topic: str) -> tuple[str, int]:
    """Return the topic of a segment's log, and the segment's id. Raises InvalidInput for a name that is not
    of a segment.
    """
    parts = _parts(backing_topic)
    return f"topic://{parts[1]}/{parts[2]}", parse_segment_descriptor(parts[3])[1]


def _parts(backing_topic: str) -> re.Match[str]:
    """Return the parts of a log's name as the groups 1 to 3 of a match: `tenant/namespace`, the topic's own
    name (which may contain slashes), and the segment's descriptor, as they are in the name. Raises
    InvalidInput for a name of another form, or an invalid descriptor.
    """
    match = _SEGMENT.fullmatch(backing_topic)
    if match is None:
        raise InvalidInput(
            f"{backing_topic!r} is not a segment of a scalable topic; write segment://tenant/namespace/name/0000-7fff-12"
        )
    parse_segment_descriptor(match[3])
    return match
