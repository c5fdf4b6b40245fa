"""Hash of a topic on the 32-bit ring, the crc32 of its complete name, and the text form of a hash.

The crc32 is zlib's (polynomial 0xEDB88320), over the UTF-8 bytes of the name, as in Pulsar.
"""

from __future__ import annotations

import re
import zlib

from controller.domain.errors import InvalidRange
from controller.domain.formatting import shown
from controller.domain.pulsar_names import canonical_topic_name

FIRST_HASH = 0x00000000
LAST_HASH = 0xFFFFFFFF


def topic_hash(topic: str) -> int:
    """Return the hash of a topic, 0..0xffffffff; a short name is completed first (`x` is `persistent://public/default/x`).
    Raises InvalidInput for a text that is no topic name.
    """
    return zlib.crc32(canonical_topic_name(topic).encode())


def edge_text(edge: int) -> str:
    """Format a hash or a boundary as Pulsar prints it: `0x` and eight lower-case digits."""
    return f"0x{edge:08x}"


def parse_edge(text: str) -> int:
    """Read one boundary, cut point or hash written as `0x40000000`. Raises InvalidRange for other texts."""
    match = re.fullmatch(r"0[xX]([0-9a-fA-F]{1,8})", text)
    if match is None:
        raise InvalidRange(
            f"{shown(text)} is not a hash; write it as 0x40000000, up to eight hexadecimal digits"
        )
    return int(match[1], 16)
