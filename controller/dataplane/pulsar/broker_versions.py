"""Decides which broker versions report slots of consumers correctly, which can read a terminated topic that they have
loaded again, and on which gates for standard consumers hold.

Up to 3.0.13, 3.3.8 and 4.0.6 a broker stores only the first and the last slot of each sticky range. A
consumer with several ranges therefore also receives the slots between them (apache/pulsar#24730). Cleave's
readers have one range each, with their own connections, and lose nothing to each other (tested on 4.0.6). But
a range of one slot leaves one mark instead of two, and the statistics, which pair the marks, then assign the
slots of all consumers wrongly. Claims determine from these statistics which consumers are in their way.

Up to 3.0.10, 3.3.5 and 4.0.3 a broker delivers nothing of a terminated topic that it has loaded again
(apache/pulsar#24063).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from controller.dataplane.pulsar.admin import Ask
from controller.domain.errors import Unsupported
from controller.domain.hash_range import HashRange

VERSION = Ask("GET", "brokers/version", "read the broker's version", is_text=True)
"""Request for the broker's version, such as `4.2.4`. Every token may send it."""

_WHOLE_RANGES_FROM: Mapping[tuple[int, int], int] = {(3, 0): 14, (3, 3): 9, (4, 0): 7}
_READS_AFTER_RELOAD_FROM: Mapping[tuple[int, int], int] = {(3, 0): 11, (3, 3): 6, (4, 0): 4}
_RIGHT_FROM = (4, 1)
GATES_FROM = (4, 0, 7)
"""First version on which gates hold."""
_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def keeps_whole_ranges(version: str) -> bool:
    """Return True if a broker of this version (`4.2.4`) stores all slots of a consumer's ranges: 3.0 from 3.0.14 on,
    3.3 from 3.3.9 on, 4.0 from 4.0.7 on, and 4.1 and later. False if the broker stores only the first and the last
    slot of each range. True for a text that does not begin with three numbers.
    """
    return _is_corrected(version, _WHOLE_RANGES_FROM)


def reads_after_reload(version: str) -> bool:
    """Return True if a broker of this version (`4.2.4`) can read a terminated topic that it has loaded again: 3.0 from
    3.0.11 on, 3.3 from 3.3.6 on, 4.0 from 4.0.4 on, and 4.1 and later. True for a text that does not begin with three
    numbers.
    """
    return _is_corrected(version, _READS_AFTER_RELOAD_FROM)


def _is_corrected(version: str, first_patches: Mapping[tuple[int, int], int]) -> bool:
    """Return True if the version has a correction. `first_patches` contains the first patch with the correction of each
    older release that has it; 4.1 and later have it. True for a text that does not begin with three numbers.
    """
    match = _NUMBERS.match(version)
    if match is None:
        return True
    major, minor, patch = (int(part) for part in match.groups())
    fixed = first_patches.get((major, minor))
    return (major, minor) >= _RIGHT_FROM if fixed is None else patch >= fixed


def demand_readable(bucket: HashRange, version: str) -> None:
    """Raise Unsupported for a bucket of one hash on a broker that would assign the slots of all consumers
    wrongly.
    """
    if bucket.width == 1 and not keeps_whole_ranges(version):
        raise Unsupported(
            f"bucket {bucket} contains one hash, and the broker is Pulsar {version}, which loses track of such ranges "
            "(apache/pulsar#24730): update it to 3.0.14, 3.3.9, 4.0.7 or later, or divide the segment into fewer buckets"
        )


def holds_gates(version: str) -> bool:
    """Return True if gates hold on a broker of this version: from `GATES_FROM` on. False if the version cannot be
    read.

    Before 4.0 a broker serves a topic before the broker has read the topic's policies, so a gate would let messages
    pass after a restart. 4.0.0 and 4.0.1 send a consumer that has just connected more entries than the dispatch rate
    allows, messages of the application among them. The tests of gates pass on 4.0.7 and 4.2.4.
    """
    match = _NUMBERS.match(version)
    return match is not None and tuple(map(int, match.groups())) >= GATES_FROM
