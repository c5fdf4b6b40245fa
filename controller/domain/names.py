"""Rules for names and reasons that people and applications give.

A name appears on terminals, in URLs, logs and pages. Each of its characters must therefore be visible. White space,
control, formatting (bidirectional ones among them) and invisible characters are refused. So is a path part `.` or
`..`, which a client would resolve. The function `cleave.is_name` in PostgreSQL is the same rule; a test compares
both for every code point. A name that is part of a path has no slash either, so that every interface can express
the name.

Names that brokers report were given by other programs and cannot be refused: `domain.formatting.printable` escapes
them.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.pulsar_names import full_name

LONGEST_NAME: Final = 500
"""Maximum length, in characters, of the name of a subscription, a consumer, or a part of a topic's name."""
MAX_NAME_BYTES: Final = 1_000
"""Maximum length, in bytes of UTF-8, of the name of a subscription, a consumer, a producer or a log: data planes store the
name as a key or an owner.
"""
LONGEST_TOPIC: Final = 2_000
"""Maximum length, in characters, of a topic's name in a request."""
MOST_TOPIC_BYTES: Final = 950
"""Maximum length, in bytes of UTF-8, of a topic's full name, or of a namespace. Data planes store 1,000 bytes of a log's
name, which adds the segment's range and id; an index entry of PostgreSQL holds 2,704 bytes.
"""
LONGEST_REASON: Final = 1_000
"""Maximum length, in characters, of a reason."""
CLUSTER: Final = "cluster"
"""The highest level of policy."""
REFUSED: Final = (
    (0x00, 0x20),  # controls and space
    (0x7F, 0xA0),  # DEL, C1, no-break space
    (0xAD, 0xAD),  # soft hyphen
    (0x34F, 0x34F),
    (0x600, 0x605),  # Arabic signs that enclose what follows
    (0x61C, 0x61C),  # Arabic letter mark
    (0x6DD, 0x6DD),
    (0x70F, 0x70F),
    (0x890, 0x891),
    (0x8E2, 0x8E2),
    (0x115F, 0x1160),  # Hangul fillers
    (0x1680, 0x1680),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2000, 0x200F),  # spaces, joiners, direction marks
    (0x2028, 0x202F),  # separators of lines, bidirectional embeddings and overrides
    (0x205F, 0x206F),  # bidirectional isolates
    (0x2800, 0x2800),  # blank Braille pattern
    (0x3000, 0x3000),
    (0x3164, 0x3164),
    (0xD800, 0xF8FF),  # surrogates, private use
    (0xFDD0, 0xFDEF),  # no characters
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFF),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x1345F),  # controls of hieroglyphs
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0x10FFFF),  # tags, variation selectors, private use
)
"""Code points that no name contains, as ranges with both ends."""
_REFUSED = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in REFUSED) + "]")
_IN_REASONS = " \t\n\r\xa0\u200c\u200d\u3000\ufe0e\ufe0f"
"""Spaces, ends of lines, and the joiners that scripts and emoji need: a reason may contain them, a name may not."""
_DOTS = frozenset({".", ".."})
_IN_NO_PATH = frozenset({"producer", "worker"})
"""Kinds of names that are not part of a path."""


def demand_name(kind: str, name: str) -> str:
    """Return the name unchanged. Raises InvalidInput, with a message that names the `kind` and the defect, for an
    empty name; for more than `LONGEST_NAME` characters, or more than `MAX_NAME_BYTES` bytes in UTF-8; for a slash,
    unless the kind is `producer` or `worker`; for a name that is, or has between slashes, a part `.` or `..`; and for
    a character that is a space or not visible.
    """
    if not name:
        raise InvalidInput(f"the {kind} is empty; give it a name")
    if len(name) > LONGEST_NAME:
        raise InvalidInput(
            f"{kind} {shown(name)} has {len(name)} characters; shorten it to at most {LONGEST_NAME}"
        )
    _demand_bytes(kind, name, MAX_NAME_BYTES)
    if "/" in name and kind not in _IN_NO_PATH:
        raise InvalidInput(f"{kind} {shown(name)} contains a slash, which no path can express; replace it")
    return demand_visible(kind, name)


def demand_namespace(text: str) -> str:
    """Return the namespace `text` unchanged. Raises InvalidInput unless the text has the form `tenant/namespace`, has
    at most `MOST_TOPIC_BYTES` bytes in UTF-8, and has two parts that `demand_name` accepts.
    """
    parts = text.split("/")
    if len(parts) != 2:
        raise InvalidInput(f"{shown(text)} is not a namespace; write tenant/namespace")
    _demand_bytes("namespace", text, MOST_TOPIC_BYTES)
    for kind, part in zip(("tenant", "namespace"), parts, strict=True):
        demand_name(kind, part)
    return text


def demand_topic(text: str) -> str:
    """Return `topic://tenant/namespace/name` unchanged. Raises InvalidInput for another form, more than
    `MOST_TOPIC_BYTES` bytes of UTF-8, or a part that is not a name as in `demand_name`.
    """
    if not text:
        raise InvalidInput("the topic is empty; give it a name")
    tenant, namespace, name, *_ = *text.removeprefix("topic://").split("/", 2), "", ""
    if not (text.startswith("topic://") and tenant and namespace and name):
        raise InvalidInput(f"{shown(text)} is not a topic; write topic://tenant/namespace/name")
    _demand_bytes("topic", text, MOST_TOPIC_BYTES)
    demand_namespace(f"{tenant}/{namespace}")
    demand_name("topic", name)
    return text


def demand_visible(kind: str, text: str) -> str:
    """Return the text unchanged; it may be empty and contain slashes. Raises InvalidInput, whose message begins with
    `kind`, for a character that is a space or not visible, and for a path part `.` or `..`.
    """
    if match := _REFUSED.search(text):
        raise InvalidInput(
            f"{kind} {shown(text)} contains {match[0]!a}, which is a space or not visible; use printable characters"
        )
    if not _DOTS.isdisjoint(text.split("/")):
        raise InvalidInput(
            f"{kind} {shown(text)} has a part of dots only, which a path would resolve; rename it"
        )
    return text


def _demand_bytes(kind: str, text: str, limit: int) -> None:
    if len(text.encode(errors="replace")) > limit:
        raise InvalidInput(f"{kind} {shown(text)} is longer than {limit} bytes in UTF-8; shorten it")


def demand_reason(kind: str, text: str, longest: int = LONGEST_REASON) -> str:
    """Return the text unchanged; it may have several lines. Raises InvalidInput for a text that is empty or contains
    only white space, for a text of more than `longest` characters, and for a text with a character that is not
    visible. Spaces, tabs, ends of lines, and the joiners that scripts and emoji need are allowed. `kind` says in the
    message what the text is, such as `reason`.
    """
    if not text.strip():
        raise InvalidInput(f"the {kind} is empty; give a reason, or leave it out")
    if len(text) > longest:
        raise InvalidInput(f"the {kind} has {len(text)} characters; shorten it to at most {longest}")
    for match in _REFUSED.finditer(text):
        if match[0] not in _IN_REASONS:
            raise InvalidInput(f"the {kind} contains {match[0]!a}, which is not visible; leave it out")
    return text


def topic_name(text: str) -> str:
    """Return the full name `topic://tenant/namespace/name` of a topic without checking it. The text may also have the
    form of Pulsar's tools: `persistent://t/n/x`, `t/n/x`, or `x` in public/default. A text with another domain is
    returned unchanged.
    """
    return full_name(text.removeprefix("persistent://"), "topic")


def full_topic_name(text: str) -> str:
    """Return the name of a topic as `topic_name` does. Raises InvalidInput unless the name has the form
    `topic://tenant/namespace/name`. The parts are not checked, because a topic of an older version may have a name that
    `demand_topic` refuses.
    """
    name = topic_name(text)
    parts = name.removeprefix("topic://").split("/")
    if not name.startswith("topic://") or len(parts) != 3 or not all(parts):
        raise InvalidInput(f"{shown(name)} is not a topic; write topic://tenant/namespace/name")
    return name


def quoted(text: str) -> str:
    """Return a name percent-encoded as one part of a path of a URL. Slashes and dots are encoded too, because `..` means
    the parent directory.
    """
    return quote(text, safe="").replace(".", "%2E")


def policy_level(text: str) -> str:
    """Return the level of policy that the text names: `cluster`, `tenant/namespace` or
    `topic://tenant/namespace/name`. `cluster` and a namespace are returned unchanged. A topic may also be given as
    `t/n/x` or `persistent://t/n/x`; the result then has the domain `topic`. The name of a topic is not checked.

    Raises InvalidInput for a text of another form, for another domain, and for a namespace that `demand_namespace`
    refuses.
    """
    if text == CLUSTER:
        return text
    domain, separator, name = text.rpartition("://")
    parts = name.split("/")
    if all(parts) and len(parts) == 2 and not separator:
        return demand_namespace(text)
    if all(parts) and len(parts) == 3 and (domain in ("topic", "persistent") or not separator):
        return topic_name(text)
    raise InvalidInput(
        f"{shown(text)} is not a level of policy; write cluster, tenant/namespace, or topic://tenant/namespace/name"
    )
