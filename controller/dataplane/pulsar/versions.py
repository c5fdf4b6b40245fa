"""Which brokers show who has which slots as they should, and which read the policies of a topic before they serve the topic.

Up to 3.0.13, 3.3.8 and 4.0.6 a broker keeps the first and the last slot of each sticky range and no more. So a consumer with several
ranges is also given what lies between them (apache/pulsar#24730). Cleave's readers have one range each, with a connection of its
own, and lose nothing to each other there: tried on 4.0.6. But a range of one slot leaves one mark where others leave two, and the
statistics, which take the marks two by two, then give everybody's slots to others. Who is in the way of a claim is read from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from controller.dataplane.pulsar.admin import Ask
from controller.domain.errors import Unsupported
from controller.domain.hash_range import HashRange

VERSION = Ask("GET", "brokers/version", "ask the broker for its version", is_text=True)
"""The broker's version: `4.2.4`. Every token may ask."""

_FIRST_RIGHT: Mapping[tuple[int, int], int] = {(3, 0): 14, (3, 3): 9, (4, 0): 7}
_RIGHT_FROM = (4, 1)
_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def keeps_whole_ranges(version: str) -> bool:
    """Whether a broker of this version keeps each range as it is. One whose version cannot be read counts as new."""
    found = _NUMBERS.match(version)
    if found is None:
        return True
    major, minor, patch = (int(part) for part in found.groups())
    fixed = _FIRST_RIGHT.get((major, minor))
    return (major, minor) >= _RIGHT_FROM if fixed is None else patch >= fixed


def demand_readable(bucket: HashRange, version: str) -> None:
    """Raises Unsupported for a bucket of one hash on a broker that would mistake everybody's slots for others'."""
    if bucket.width == 1 and not keeps_whole_ranges(version):
        raise Unsupported(
            f"bucket {bucket} holds one hash, and the broker is Pulsar {version}, which loses track of such ranges "
            "(apache/pulsar#24730): update it to 3.0.14, 3.3.9, 4.0.7 or later, or cut the segment into fewer buckets"
        )


def reads_policies_first(version: str) -> bool:
    """Return True if a broker of this version reads the policies of a topic before the broker serves the topic.

    3.0 does not. False if the version cannot be read.
    """
    found = _NUMBERS.match(version)
    return found is not None and int(found[1]) >= 4
