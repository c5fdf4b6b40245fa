"""Which brokers hand out the entries of buckets as they should.

A consumer with sticky ranges was also given what lies between its range and the next one that somebody has
(apache/pulsar#24730). It was put right in 3.0.14, 3.3.9, 4.0.7 and everything later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from controller.dataplane.pulsar.admin import Ask
from controller.domain.errors import Unsupported

VERSION = Ask("GET", "brokers/version", "ask the broker for its version", is_text=True)
"""The broker's version: `4.2.4`. Every token may ask."""

_FIRST_RIGHT: Mapping[tuple[int, int], int] = {(3, 0): 14, (3, 3): 9, (4, 0): 7}
_RIGHT_FROM = (4, 1)
_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def keeps_buckets_apart(version: str) -> bool:
    """Whether a broker of this version gives a consumer nothing but its own slots. One whose version cannot be read
    counts as new.
    """
    found = _NUMBERS.match(version)
    if found is None:
        return True
    major, minor, patch = (int(part) for part in found.groups())
    fixed = _FIRST_RIGHT.get((major, minor))
    return (major, minor) >= _RIGHT_FROM if fixed is None else patch >= fixed


def demand_buckets(version: str) -> None:
    """Raises Unsupported for a broker that would mix buckets."""
    if not keeps_buckets_apart(version):
        raise Unsupported(
            f"the broker is Pulsar {version}, which gives a bucket's reader messages of other buckets "
            "(apache/pulsar#24730): update it to 3.0.14, 3.3.9, 4.0.7 or later, or keep one bucket to a segment"
        )
