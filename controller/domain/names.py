"""Names and reasons that people and applications give: what may stand in them.

A name appears on terminals, in URLs, logs and pages. Each of its characters must therefore be visible: white space, control,
formatting (bidirectional ones among them) and invisible characters are refused, and so is a path part `.` or `..`, which a client
would resolve. `cleave.is_name` in PostgreSQL is the same rule; a test compares both for every code point.

Names that brokers report were given by other programs and cannot be refused: `domain.shown.printable` escapes them.
"""

from __future__ import annotations

import re
from typing import Final

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown

LONGEST_NAME: Final = 500
"""Characters of the name of a subscription, a consumer, or a part of a topic's name."""
MOST_NAME_BYTES: Final = 1_000
"""Bytes of the name of a subscription, a consumer or a producer in UTF-8: data planes keep it as a key or an owner."""
LONGEST_TOPIC: Final = 2_000
LONGEST_REASON: Final = 1_000
CLUSTER: Final = "cluster"
"""The topmost level of policy."""
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
"""Code points that no name holds, as ranges with both ends."""
_REFUSED = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in REFUSED) + "]")
_IN_REASONS = " \t\n\r\xa0\u200c\u200d\u3000\ufe0e\ufe0f"
"""Spaces, ends of lines, and the joiners that scripts and emoji need: a reason may hold them, a name may not."""
_DOTS = frozenset({".", ".."})


def demand_name(kind: str, name: str, longest: int = LONGEST_NAME) -> str:
    """Return the name itself. Raises InvalidInput, which names the `kind` and what is wrong."""
    if not name:
        raise InvalidInput(f"the {kind} is empty; give it a name")
    if len(name) > longest:
        raise InvalidInput(
            f"{kind} {shown(name)} has {len(name)} characters; {longest} at most, so shorten it"
        )
    if longest == LONGEST_NAME and len(name.encode(errors="replace")) > MOST_NAME_BYTES:
        raise InvalidInput(
            f"{kind} {shown(name)} is longer than {MOST_NAME_BYTES} bytes in UTF-8; shorten it"
        )
    if found := _REFUSED.search(name):
        raise InvalidInput(
            f"{kind} {shown(name)} holds {found[0]!a}, which is a space or not visible; use printable characters"
        )
    if not _DOTS.isdisjoint(name.split("/")):
        raise InvalidInput(f"{kind} {shown(name)} has a part that is only dots, as in a path; rename it")
    return name


def demand_reason(kind: str, text: str, longest: int = LONGEST_REASON) -> str:
    """Return the text itself, of one or several lines. Raises InvalidInput for one that is blank, too long, or holds control or
    bidirectional characters.
    """
    if not text.strip():
        raise InvalidInput(f"the {kind} is empty; say why, or leave it out")
    if len(text) > longest:
        raise InvalidInput(f"the {kind} has {len(text)} characters; {longest} at most, so shorten it")
    for found in _REFUSED.finditer(text):
        if found[0] not in _IN_REASONS:
            raise InvalidInput(f"the {kind} holds {found[0]!a}, which is not visible; leave it out")
    return text


def topic_name(text: str) -> str:
    """Return the full name of a topic, also where the text follows Pulsar's tools: `persistent://t/n/x`, `t/n/x`, or `x` in
    public/default.
    """
    text = text.removeprefix("persistent://")
    if "://" in text:
        return text
    return f"topic://{text}" if "/" in text else f"topic://public/default/{text}"


def policy_level(text: str) -> str:
    """Return a level of policy: `cluster`, a namespace, or a topic's full name. Raises InvalidInput."""
    if text == CLUSTER:
        return text
    parts = text.rsplit("://", maxsplit=1)[-1].split("/")
    if all(parts) and ((len(parts) == 2 and "://" not in text) or len(parts) == 3):
        return text if len(parts) == 2 else topic_name(text)
    raise InvalidInput(
        f"{text!r} is no level of policy: write cluster, tenant/namespace, or topic://tenant/namespace/name"
    )
